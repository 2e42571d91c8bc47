//! What a new user types first: commands without `--`, words of docker, a RUN that is left out.

use belljar_testkit::{Done, Input, Lab};

/// Calls belljar, and checks its exit code.
fn call(lab: &Lab, words: &[&str], code: i32) -> Done {
    let done = lab.belljar(words).done();
    done.expect(code);
    done
}

#[test]
fn the_first_word_that_is_no_flag_starts_the_command() {
    let lab = Lab::me();
    lab.make_file("work/here", "");
    let done = call(&lab, &["run", "-q", "ls", "-1", "--", "here"], 0);
    assert_eq!(done.out(), "here\n", "flags and -- after it are the command's");
    let done = call(&lab, &["run", "-q", "--", "ls", "-1", "here"], 0);
    assert_eq!(done.out(), "here\n");
    // A flag of belljar that is mistyped before the command is an error, not the command.
    let wrong = call(&lab, &["run", "--allow-hosts", "x", "ls"], 2);
    assert!(wrong.err().contains("'--allow-hosts'"), "{}", wrong.err());

    call(&lab, &["run", "--keep", "--name", "box"], 0);
    let done = call(&lab, &["exec", "box", "ls", "-1", "--color=never"], 0);
    assert_eq!(done.out(), "here\n");
    let done = call(&lab, &["exec", "box", "--", "ls", "-1"], 0);
    assert_eq!(done.out(), "here\n");
    call(&lab, &["stop", "box"], 0);
}

#[test]
fn a_loop_over_lines_keeps_its_input_with_n() {
    let lab = Lab::me();
    call(&lab, &["run", "--keep", "--name", "box"], 0);
    // The wrapper gets belljar and its arguments.
    let lines = |words: &[&str]| {
        let script = "while read line; do \"$@\"; echo $line; done";
        let call = lab.belljar(words).through(&["sh", "-c", script, "loop"]);
        call.input(Input::Bytes(b"a\nb\nc\n".to_vec())).done().out()
    };
    assert_eq!(lines(&["run", "-q", "-n", "cat"]), "a\nb\nc\n");
    assert_eq!(lines(&["exec", "-n", "box", "cat"]), "a\nb\nc\n");
    // Without it, the command reads the rest.
    assert_eq!(lines(&["run", "-q", "cat"]), "b\nc\na\n");
    assert_eq!(lines(&["exec", "box", "cat"]), "b\nc\na\n");
    call(&lab, &["stop", "box"], 0);
}

#[test]
fn a_run_that_is_left_out_is_the_newest_where_a_command_only_reads() {
    let lab = Lab::me();
    let none = call(&lab, &["show"], 125);
    assert!(none.err().contains("there is no run yet; belljar run COMMAND"), "{}", none.err());
    call(&lab, &["run", "-q", "--name", "old", "echo", "first"], 0);
    call(
        &lab,
        &[
            "run",
            "-q",
            "--name",
            "new",
            "--workspace",
            ".:overlay",
            "sh",
            "-c",
            "echo last; exit 3",
        ],
        3,
    );
    assert_eq!(call(&lab, &["logs"], 0).out(), "last\n");
    let new = call(&lab, &["show", "new", "--json"], 0).json()["run"]["id"].clone();
    assert_eq!(call(&lab, &["show", "--json"], 0).json()["run"]["id"], new);
    assert_eq!(call(&lab, &["verify", "--json"], 0).json()[0]["id"], new);
    assert!(call(&lab, &["events"], 0).out().contains("run.stop"));
    call(&lab, &["diff"], 0);
    call(&lab, &["why"], 0);
    call(&lab, &["wait"], 3);
    let ended = call(&lab, &["attach"], 125);
    assert!(ended.err().contains("is not alive"), "{}", ended.err());
}

#[test]
fn a_run_that_must_be_named_is_suggested() {
    let lab = Lab::me();
    let none = call(&lab, &["stop"], 2);
    assert!(!none.err().contains("hint:"), "there is no run to suggest: {}", none.err());
    assert_eq!(std::fs::read_dir(lab.home()).unwrap().count(), 0, "wrong usage made a home");
    call(&lab, &["run", "-q", "--name", "web", "true"], 0);
    let tail = lab.runs().remove(0);
    let tail = tail[tail.len() - 7..].to_owned();
    for verb in ["stop", "rm", "apply", "discard", "resume", "fork"] {
        let done = call(&lab, &[verb], 2);
        let hint = format!("hint:  the newest run is {tail}, \"web\": belljar {verb} {tail}\n");
        assert!(done.err().contains(&hint), "{verb}: {}", done.err());
    }
    let done = call(&lab, &["cp"], 2);
    let hint = format!("the newest run is {tail}, \"web\": belljar cp {tail}:/workspace/file .\n");
    assert!(done.err().contains(&hint), "{}", done.err());
    let done = call(&lab, &["exec", "ls"], 2);
    let hint = format!("the newest run is {tail}, \"web\": belljar exec {tail} ls\n");
    assert!(done.err().contains(&hint), "{}", done.err());
}

#[test]
fn words_of_docker_get_an_answer() {
    let lab = Lab::me();
    for (words, answer) in [
        (&["kill", "web"][..], "belljar stop -t 0 RUN"),
        (&["top", "web"], "belljar exec RUN ps -ef"),
        (&["stats"], "belljar show RUN"),
        (&["images"], "belljar image list"),
        (&["run", "--privileged", "true"], "a sandbox never gets privileges"),
        (&["exec", "-u", "0", "web", "id"], "belljar run --user UID:GID"),
    ] {
        let done = call(&lab, words, 2);
        assert!(done.err().contains(answer), "{words:?}: {}", done.err());
        assert!(done.err().starts_with("error: "), "{words:?}: {}", done.err());
    }
    let id = call(&lab, &["run", "-q", "--rm", "-u", "1234:1234", "id", "-u"], 0);
    assert_eq!(id.out(), "1234\n");
    assert_eq!(call(&lab, &["ls", "-aq"], 0).out().lines().count(), 1);
    assert!(call(&lab, &["inspect"], 0).out().contains("id -u"));
    call(&lab, &["run", "-q", "printf", "1\\n2\\n3\\n"], 0);
    assert_eq!(call(&lab, &["logs", "-n", "1"], 0).out(), "3\n");
}
