//! Exit code 127: which of its causes it is, and what helps.

use std::os::unix::fs::symlink;

use belljar_testkit::{Done, Lab, each_actor};

/// A program in an install prefix outside the workspace, which prints its name.
fn installed(lab: &Lab) -> String {
    lab.make_program("opt/bin/outside", "#!/bin/sh\necho outside\n");
    lab.path("opt").display().to_string()
}

fn run(lab: &Lab, words: &[&str]) -> Done {
    lab.belljar(["run", "-q", "--backend", "jail"].iter().chain(words)).done()
}

/// Does what the hint says: adds the flags after "bring it in: " to the run.
fn follow_hint(lab: &Lab, done: &Done, command: &[&str]) -> Done {
    let err = done.err();
    let hint =
        err.lines().find(|line| line.starts_with("hint:")).unwrap_or_else(|| panic!("{err}"));
    let (_, flags) = hint.split_once("bring it in: ").unwrap_or_else(|| panic!("{hint}"));
    let flags: Vec<&str> = flags.split(' ').collect();
    run(lab, &flags.iter().chain(command).copied().collect::<Vec<_>>())
}

#[test]
fn a_link_that_leads_outside_is_named_with_the_tool_that_brings_it_in() {
    each_actor(|lab| {
        let prefix = installed(lab);
        symlink(format!("{prefix}/bin/outside"), lab.work().join("linked")).unwrap();
        let done = run(lab, &["./linked"]);
        done.expect(127);
        let to = format!("./linked is a link to {prefix}/bin/outside, which does not exist inside");
        assert!(
            done.err().contains(&format!("not found inside the sandbox: {to}")),
            "{}",
            done.err()
        );
        assert!(done.err().contains(&format!("--tool {prefix}\n")), "{}", done.err());
        let helped = follow_hint(lab, &done, &["./linked"]);
        helped.expect(0);
        assert_eq!(helped.out(), "outside\n");
    });
}

#[test]
fn a_missing_interpreter_is_named() {
    let lab = Lab::me();
    let prefix = installed(&lab);
    lab.make_program("work/script", &format!("#!{prefix}/bin/outside -x\n"));
    // The kernel takes no script as an interpreter, so the positive control is a program.
    std::fs::copy("/bin/sh", lab.path("opt/bin/outside")).unwrap();
    lab.make_program("work/script", &format!("#!{prefix}/bin/outside\necho interpreted\n"));
    let done = run(&lab, &["./script"]);
    done.expect(127);
    let why =
        format!("./script needs the interpreter {prefix}/bin/outside, which does not exist inside");
    assert!(done.err().contains(&why), "{}", done.err());
    let helped = follow_hint(&lab, &done, &["./script"]);
    helped.expect(0);
    assert_eq!(helped.out(), "interpreted\n");
}

#[test]
fn a_path_of_the_host_is_named() {
    let lab = Lab::me();
    let prefix = installed(&lab);
    let program = format!("{prefix}/bin/outside");
    let done = run(&lab, &[&program]);
    done.expect(127);
    assert!(done.err().contains("it is a path of the host, and not mounted"), "{}", done.err());
    assert_eq!(follow_hint(&lab, &done, &[&program]).out(), "outside\n");
    // A program outside of a bin directory is mounted alone.
    let single = lab.make_program("single/tool", "#!/bin/sh\necho single\n").display().to_string();
    let done = run(&lab, &[&single]);
    done.expect(127);
    assert!(done.err().contains(&format!("-v {single}:{single}")), "{}", done.err());
    assert_eq!(follow_hint(&lab, &done, &[&single]).out(), "single\n");
}

#[test]
fn a_program_that_is_not_installed_is_said_to_be_so() {
    let lab = Lab::me();
    let done = run(&lab, &["no-such-program"]);
    done.expect(127);
    assert!(done.err().contains("no directory of PATH has it"), "{}", done.err());
    assert!(
        done.err().contains("the host does not have it either: install no-such-program"),
        "{}",
        done.err()
    );
    let image = run(&lab, &["ubuntu:24.04", "ls", "-l"]);
    image.expect(127);
    let hint = "belljar run --image ubuntu:24.04 ls -l\n";
    assert!(image.err().contains(hint), "{}", image.err());
}

#[test]
fn exec_says_how_to_start_the_run() {
    let lab = Lab::me();
    let prefix = installed(&lab);
    lab.belljar(["run", "--backend", "jail", "--keep", "--name", "box"]).done().expect(0);
    let program = format!("{prefix}/bin/outside");
    let done = lab.belljar(["exec", "box", &program]).done();
    done.expect(127);
    assert!(
        done.err().contains(&format!("start the run with --tool {prefix}\n")),
        "{}",
        done.err()
    );
    lab.belljar(["stop", "box"]).done().expect(0);
}

#[test]
fn of_the_users_prefix_only_programs_are_shown() {
    each_actor(|lab| {
        lab.make_program("person/.local/bin/outside", "#!/bin/sh\necho outside\n");
        lab.make_program("person/.local/share/pack/run", "#!/bin/sh\necho packed\n");
        symlink("../share/pack/run", lab.path("person/.local/bin/packed")).unwrap();
        lab.make_file("person/.local/share/other/auth.json", "secret\n");
        lab.make_file("person/.local/state/belljar/key", "secret\n");
        let home = lab.make_directory("person/.local/state/mine").display().to_string();
        let local = lab.path("person/.local").display().to_string();
        let run = |words: &[&str]| {
            let call = lab.belljar(["run", "-q", "--backend", "jail"].iter().chain(words));
            call.env("BELLJAR_HOME", &home).done()
        };
        let script = format!("outside; packed; find {local} -name auth.json -o -name state");
        let done = run(&["--tool", &local, "sh", "-c", &script]);
        assert_eq!(done.expect(0).out(), "outside\npacked\n", "{done}");
        // As a mount or a workspace it is refused, and so are the home in use and the usual one as a tool.
        let usual = format!("{local}/state/belljar");
        for words in [
            ["-v".to_owned(), format!("{local}:{local}"), "true".to_owned()],
            ["--workspace".to_owned(), local.clone(), "true".to_owned()],
            ["--tool".to_owned(), home.clone(), "true".to_owned()],
            ["--tool".to_owned(), usual, "true".to_owned()],
            ["--tool".to_owned(), format!("{local}/state"), "true".to_owned()],
        ] {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let refused = run(&words);
            refused.expect(125);
            assert!(refused.err().contains("Belljar's own"), "{words:?}: {}", refused.err());
        }
    });
}

/// Whoever wrote the link would learn from the hint what the host has.
#[test]
fn a_path_that_a_file_inside_names_is_not_looked_up_on_the_host() {
    let lab = Lab::me();
    let prefix = installed(&lab);
    lab.make_file("person/.ssh/id_rsa", "secret\n");
    let hint_for = |to: String| {
        let _ = std::fs::remove_file(lab.work().join("linked"));
        symlink(&to, lab.work().join("linked")).unwrap();
        let done = run(&lab, &["./linked"]);
        done.expect(127);
        done.err().replace(&to, "TARGET")
    };
    let there = hint_for(format!("{prefix}/bin/outside"));
    assert!(there.contains("hint:"), "the control: {there}");
    assert_eq!(there, hint_for(format!("{prefix}/bin/nowhere")));
    let key = hint_for(lab.path("person/.ssh/id_rsa").display().to_string());
    assert!(!key.contains("hint:"), "{key}");
    assert_eq!(key, hint_for(lab.path("person/.ssh/nowhere").display().to_string()));
}
