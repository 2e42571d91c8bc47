//! What a new user types first: commands without `--`, words of docker, a RUN that is left out.

use belljar_testkit::{Done, Input, Lab, each_actor};

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
    assert!(ended.err().contains("no run is live"), "{}", ended.err());
    let ended = call(&lab, &["attach", "new"], 125);
    assert!(ended.err().contains("is not alive"), "{}", ended.err());
    // A live one that is older than the newest.
    call(&lab, &["run", "-d", "--name", "live", "sh", "-c", "sleep 3; exit 4"], 0);
    call(&lab, &["run", "-q", "true"], 0);
    call(&lab, &["attach"], 4);
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
    for verb in ["rm", "apply", "discard", "resume", "fork"] {
        let done = call(&lab, &[verb], 2);
        let hint = format!("hint:  the newest run is {tail}, \"web\": belljar {verb} {tail}\n");
        assert!(done.err().contains(&hint), "{verb}: {}", done.err());
    }
    // What needs a live run is not told one that has ended.
    for words in [&["stop"][..], &["exec", "ls"], &["cp"], &["network"], &["port"], &["renew"]] {
        let done = call(&lab, words, 2);
        let hint = "hint:  no run is live; start one: belljar run --keep --name NAME\n";
        assert!(done.err().contains(hint), "{words:?}: {}", done.err());
    }
    call(&lab, &["run", "--keep", "--name", "web"], 0);
    let tail = lab.live().remove(0);
    let tail = tail[tail.len() - 7..].to_owned();
    call(&lab, &["run", "-q", "true"], 0);
    let done = call(&lab, &["stop"], 2);
    let hint = format!("hint:  the newest run is {tail}, \"web\": belljar stop {tail}\n");
    assert!(done.err().contains(&hint), "{}", done.err());
    let done = call(&lab, &["cp"], 2);
    let hint = format!("the newest run is {tail}, \"web\": belljar cp {tail}:/workspace/file .\n");
    assert!(done.err().contains(&hint), "{}", done.err());
    let done = call(&lab, &["exec", "ls"], 2);
    let hint = format!("the newest run is {tail}, \"web\": belljar exec {tail} ls\n");
    assert!(done.err().contains(&hint), "{}", done.err());
    call(&lab, &["stop", "web"], 0);
}

#[test]
fn the_examples_of_the_help_work_for_everyone() {
    each_actor(|lab| {
        let mut examples = 0;
        for words in [&["--help"][..], &["run", "--help"]] {
            let mut help = call(lab, words, 0).out();
            while let Some((before, after)) = help.split_once("\\\n") {
                help = format!("{before}{}", after.trim_start()); // a command on two lines
            }
            let lines = help.lines().filter_map(|line| line.strip_prefix("  belljar run "));
            // The agents are not installed here.
            for line in lines.filter(|line| !line.contains("--agent")) {
                let line = line.trim_start();
                let example = line.split("   ").find(|part| !part.is_empty()).unwrap();
                let words = example.split_whitespace().filter(|word| *word != "--dry-run");
                let done = lab.run(["--no-config", "--dry-run"].into_iter().chain(words)).done();
                assert_eq!(done.code(), 0, "belljar run {example}: {done}");
                examples += 1;
            }
        }
        assert!(examples > 10, "{examples}");
        // The control: a limit that needs a group of its own is refused without one.
        let limited = lab.run(["--no-config", "--dry-run", "-m", "2g", "true"]).done();
        assert_eq!(limited.code() == 0, lab.actor.holds_limits(), "{limited}");
    });
}

#[test]
fn a_name_that_a_live_run_has_is_refused() {
    let lab = Lab::me();
    call(&lab, &["run", "--keep", "--name", "web"], 0);
    let id = lab.live().remove(0);
    for words in [&["true"][..], &["-d", "true"], &["--keep"], &["-c", "sandbox.name=web", "true"]]
    {
        let words: Vec<&str> = ["run", "--name", "web"].iter().chain(words).copied().collect();
        let refused = call(&lab, &words, 125);
        let err = refused.err();
        assert!(err.contains("the name \"web\" is in use") && err.contains(&id), "{err}");
        assert!(err.contains("belljar stop web") && err.contains("belljar exec web"), "{err}");
    }
    assert_eq!(lab.runs().len(), 1);
    call(&lab, &["run", "--dry-run", "--name", "web", "true"], 0);
    call(&lab, &["run", "-q", "--name", "web", "--reuse", "-d", "true"], 0);
    call(&lab, &["run", "-q", "--name", "other", "true"], 0);
    // The name of a manifest is that of every run there.
    lab.make_file("work/belljar.toml", "[sandbox]\nname = 'web'\n");
    call(&lab, &["run", "-q", "true"], 0);
    call(&lab, &["stop", "web"], 0);
    call(&lab, &["run", "-q", "--name", "web", "true"], 0);
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
