//! `belljar init`: with flags, with questions, and what a run does with what it wrote.

use std::fs;

use belljar_testkit::{Done, Lab, PtyRun, each_user};

fn belljar(lab: &Lab, words: &[&str]) -> Done {
    lab.belljar(words).done()
}

fn read(lab: &Lab, name: &str) -> String {
    fs::read_to_string(lab.work().join(name)).unwrap()
}

#[test]
fn what_init_writes_is_trusted_and_a_run_uses_it() {
    each_user(|lab| {
        let done = belljar(
            lab,
            &["init", "--yes", "--allow-host", "pypi.org", "--time", "1h", "--backend", "jail"],
        );
        done.expect(0);
        done.says(&["wrote", "belljar.toml", "trusted", "belljar run -- COMMAND"]);
        assert!(done.out().contains("fs.mounts"), "the posture is shown: {done}");
        let written = read(lab, "belljar.toml");
        assert!(written.contains("allow = [\"pypi.org\"]"), "{written}");
        assert!(written.contains("# "), "it is commented: {written}");

        // Overlay: what the run writes stays in it.
        belljar(lab, &["run", "-q", "--", "sh", "-c", "echo changed > file"]).expect(0);
        assert!(!lab.work().join("file").exists());
        let diff = belljar(lab, &["diff", "--name-only", &lab.runs().pop().unwrap()]);
        diff.expect(0);
        assert!(diff.out().contains("file"), "{diff}");

        // A change makes it untrusted, as with any other manifest.
        fs::write(lab.work().join("belljar.toml"), format!("{written}# more\n")).unwrap();
        belljar(lab, &["run", "--", "true"]).expect(125).says(&["has changed since"]);
    });
}

#[test]
fn without_a_terminal_nobody_is_asked() {
    let lab = Lab::me();
    belljar(&lab, &["init"]).expect(125).says(&["nothing can be asked", "--yes"]);
    assert!(!lab.work().join("belljar.toml").exists());
    belljar(&lab, &["init", "--yes"]).expect(0);
    assert!(lab.work().join("belljar.toml").exists());
}

#[test]
fn a_manifest_that_is_there_stays_unless_forced() {
    let lab = Lab::me();
    lab.make_file("work/belljar.toml", "# mine\n");
    belljar(&lab, &["init", "--yes"]).expect(125).says(&["already", "--force"]);
    assert_eq!(read(&lab, "belljar.toml"), "# mine\n");
    belljar(&lab, &["init", "--yes", "--force"]).expect(0).says(&["belljar.toml.old"]);
    assert_eq!(read(&lab, "belljar.toml.old"), "# mine\n");
    assert!(read(&lab, "belljar.toml").contains("overlay"));
}

#[test]
fn a_dry_run_prints_and_writes_nothing() {
    let lab = Lab::me();
    for flag in ["--dry-run", "--print"] {
        let words = ["init", "--yes", flag, "--agent", "claude", "--loop", "--max-cost-usd", "5"];
        let done = belljar(&lab, &words);
        done.expect(0);
        for part in ["kind = \"claude\"", "prompt_file = \"PROMPT.md\"", "max_cost_usd = 5.0"] {
            assert!(done.out().contains(part), "{part}: {done}");
        }
    }
    assert_eq!(fs::read_dir(lab.work()).unwrap().count(), 0);
}

#[test]
fn wrong_answers_write_nothing() {
    let lab = Lab::me();
    for (words, says) in [
        (&["--backend", "host"][..], "isolates nothing"),
        (&["--fallback", "host"], "isolates nothing"),
        (&["--allow-host", "no host"], "is not a host rule"),
        (&["--loop"], "needs an agent"),
        (&["--agent", "command"], "needs a program"),
        (&["--agent", "claude", "--", "true"], "takes no command"),
        (&["--agent", "command", "--until-file", "../x", "--", "true"], "must be in the workspace"),
    ] {
        let words: Vec<&str> = ["init", "--yes"].iter().chain(words).copied().collect();
        belljar(&lab, &words).expect(125).says(&[says]);
    }
    for words in [&["--backend", "vm"][..], &["--agent", "other"], &["--max-cost-usd", "-1"]] {
        let words: Vec<&str> = ["init", "--yes"].iter().chain(words).copied().collect();
        belljar(&lab, &words).expect(2);
    }
    assert_eq!(fs::read_dir(lab.work()).unwrap().count(), 0);
}

#[test]
fn an_agent_gets_its_prompt_file() {
    let lab = Lab::me();
    let words = ["init", "--yes", "--json", "--agent", "command", "--prompt-file", "TASK.md"];
    let words: Vec<&str> =
        words.into_iter().chain(["--until-says", "ALL DONE", "--", "cat", "-"]).collect();
    let told = belljar(&lab, &words).expect(0).json();
    let work = lab.work().canonicalize().unwrap();
    assert_eq!(told["manifest"], work.join("belljar.toml").to_str().unwrap());
    assert_eq!(told["prompt_made"], work.join("TASK.md").to_str().unwrap());
    assert_eq!(told["trusted"], true);
    assert!(told["posture"].is_object(), "{told}");
    assert!(read(&lab, "TASK.md").contains("ALL DONE"), "what ends the loop is said there");
    let shown = belljar(&lab, &["config", "show"]).expect(0).out();
    for part in ["agent.kind", "agent.command", "loop.max_iterations", "loop.until"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_person_is_asked_and_may_answer_wrongly() {
    let lab = Lab::me();
    let call =
        lab.belljar(["init", "--backend", "auto", "--memory", "1g"]).through(PtyRun::SESSION);
    let mut person = PtyRun::start(&call, 24, 80);
    for (question, answer) in [
        ("this directory:", "sideways"),
        ("there is no workspace mode", "ro"),
        ("hosts to allow", "pypi.org, files.pythonhosted.org"),
        ("time limit", "soon"),
        ("time limit", "2h"),
        ("agent:", "command"),
        ("program and arguments", ""),
        ("enter a program", "sh agent.sh"),
        ("prompt file", ""),
        ("in a loop", "y"),
        ("number of iterations", "7"),
        ("which file", ""),
        ("US dollars", "2.5"),
    ] {
        person.wait_for(question);
        person.type_in(&format!("{answer}\n"));
    }
    let (code, screen) = person.end();
    assert_eq!(code, 0, "{screen}");
    let written = read(&lab, "belljar.toml");
    for part in [
        "{ mode = \"ro\" }",
        "allow = [\"pypi.org\", \"files.pythonhosted.org\"]",
        "memory = \"1g\"",
        "time = \"2h\"",
        "command = [\"sh\", \"agent.sh\"]",
        "max_iterations = 7",
        "until = { file = \"DONE\" }",
        "max_cost_usd = 2.5",
    ] {
        assert!(written.contains(part), "{part}: {written}");
    }
    assert!(!lab.work().join("PROMPT.md").exists(), "a command needs none");
}

#[test]
fn backends_that_were_found_can_be_chosen() {
    let lab = Lab::me();
    let call = lab.belljar(["init", "--agent", "none"]).through(PtyRun::SESSION);
    let mut person = PtyRun::start(&call, 24, 80);
    person.wait_for("backend:");
    assert!(person.screen().contains("jail"), "{}", person.screen());
    person.type_in("auto\n");
    for question in ["this directory:", "hosts to allow", "memory", "time limit"] {
        person.wait_for(question);
        person.type_in("\n");
    }
    let (code, screen) = person.end();
    assert_eq!(code, 0, "{screen}");
    assert!(read(&lab, "belljar.toml").contains("backend = \"auto\""));
    // Whoever goes away in the middle has written nothing.
    fs::remove_file(lab.work().join("belljar.toml")).unwrap();
    let call = lab.belljar(["init", "--backend", "auto"]).through(PtyRun::SESSION);
    let mut person = PtyRun::start(&call, 24, 80);
    person.wait_for("this directory:");
    person.type_in("\u{4}");
    assert_eq!(person.end().0, 125);
    assert!(!lab.work().join("belljar.toml").exists());
}
