//! What belljar says: refused sources with their flag and what to do, limits that were reached, what a command did.

use std::fs;

use belljar_testkit::{Done, Lab, PtyRun, until};

fn call(lab: &Lab, words: &[&str], code: i32) -> Done {
    let done = lab.belljar(words).done();
    done.expect(code);
    done
}

fn says(done: &Done, text: &str) {
    assert!(done.err().contains(text), "not said: {text}\n{}", done.err());
}

#[test]
fn a_source_that_is_refused_is_named_with_its_flag_and_what_to_do() {
    let lab = Lab::me();
    let person = lab.person();
    let home = person.display().to_string();
    let done = lab.belljar(["run", "--backend", "jail", "true"]).from(person.clone()).done();
    done.expect(125);
    says(&done, &format!("error: --workspace: {home} is or contains the home directory {home}"));
    says(
        &done,
        &format!("use another directory, or, to mount it all the same, --allow-source {home}"),
    );
    let state = person.join(".local/state/belljar");
    let call_in_home = lab.belljar(["run", "--backend", "jail", "true"]).from(person.clone());
    let done = call_in_home.env("BELLJAR_HOME", &state).done();
    done.expect(125);
    says(&done, "--workspace: ");
    says(&done, "Belljar's own directory");
    says(&done, "use a project directory, or --workspace none");

    let typo = call(&lab, &["run", "--workspace", ".:overlya", "true"], 2);
    says(&typo, "--workspace: there is no mode \"overlya\"; use :ro, :rw or :overlay");
    fs::create_dir(lab.work().join("a:b")).unwrap();
    call(&lab, &["run", "-q", "--workspace", "a:b:rw", "true"], 0);

    let missing = lab.path("missing").display().to_string();
    let volume = format!("{missing}:/x");
    let done = call(&lab, &["run", "--backend", "jail", "-v", &volume, "true"], 125);
    says(&done, &format!("--volume: {missing} does not exist, and belljar does not create it"));
    says(&done, &format!("mkdir -p {missing}"));
    fs::create_dir_all(&missing).unwrap();
    call(&lab, &["run", "-q", "--backend", "jail", "-v", &volume, "true"], 0);

    let network = call(&lab, &["run", "--network", "host", "true"], 2);
    says(&network, "--network: takes only \"none\", not \"host\"; use --allow-host HOST");

    let on_host = ["--backend", "host", "--waive", "all=a test", "--image", "tools", "true"];
    let image = call(&lab, &[&["run"][..], &on_host].concat(), 0);
    says(&image, "warning: --image has no effect on the host backend");
    says(&image, "leave out --backend host");
    let quiet = call(&lab, &[&["run", "-q"][..], &on_host].concat(), 0).err();
    assert!(!quiet.contains("--image"), "{quiet}");
    let missing = ["run", "--backend", "jail", "--image", "tools", "--pull", "never", "true"];
    let missing = call(&lab, &missing, 125);
    says(&missing, "Belljar's own store has no image \"tools\", and the pull policy is never");
    says(&missing, "belljar image pull tools, or from a file");
}

#[test]
fn a_limit_that_ended_a_run_is_named() {
    let lab = Lab::me();
    let late = call(&lab, &["run", "--timeout", "1s", "sleep", "60"], 124);
    assert_eq!(late.err(), "belljar: stopped at the time limit of 1s (--timeout)\n");
    let late = call(&lab, &["run", "-q", "--timeout", "1s", "sleep", "60"], 124);
    assert_eq!(
        late.err(),
        "belljar: stopped at the time limit of 1s (--timeout)\n",
        "also with -q"
    );
    let idle = call(&lab, &["run", "--idle", "1s", "sleep", "60"], 137);
    assert_eq!(idle.err(), "belljar: stopped because there was no output for 1s (--idle)\n");
    call(&lab, &["run", "--keep", "--name", "box"], 0);
    let late = call(&lab, &["exec", "--timeout", "1s", "box", "sleep", "60"], 124);
    says(&late, "belljar: killed at its time limit (--timeout)");
    call(&lab, &["stop", "box"], 0);
    assert_eq!(call(&lab, &["run", "--timeout", "60s", "true"], 0).err(), "", "the control");
}

#[test]
fn commands_say_what_they_did_and_print_ids_with_q() {
    let lab = Lab::me();
    let id = |name: &str| {
        let shown = call(&lab, &["show", name, "--json"], 0).json();
        shown["run"]["id"].as_str().unwrap().to_owned()
    };
    call(&lab, &["run", "--keep", "--name", "one"], 0);
    call(&lab, &["run", "--keep", "--name", "two"], 0);
    let (one, two) = (id("one"), id("two"));
    assert_eq!(call(&lab, &["stop", "one"], 0).out(), format!("{one} (one) stopped\n"));
    assert_eq!(call(&lab, &["stop", "one"], 0).out(), format!("{one} (one) had already ended\n"));
    assert_eq!(call(&lab, &["stop", "-q", "two"], 0).out(), format!("{two}\n"));
    assert_eq!(call(&lab, &["rm", "one"], 0).out(), format!("{one} (one) removed\n"));
    assert_eq!(call(&lab, &["rm", "-q", "two"], 0).out(), format!("{two}\n"));
    let overlay = ["run", "-q", "--name", "new", "--workspace", ".:overlay", "touch", "x"];
    call(&lab, &overlay, 0);
    let new = id("new");
    let discarded = call(&lab, &["discard", "-y", "new"], 0);
    assert_eq!(discarded.out(), format!("{new} (new): its changes were discarded\n"));
    assert_eq!(call(&lab, &["prune", "-q", "--keep", "0"], 0).out(), format!("{new}\n"));
    says(&call(&lab, &["prune", "--keep", "0"], 0), "nothing to remove");
    // A run that does not exist: nothing is done, as with every command.
    call(&lab, &overlay, 0);
    for verb in ["rm", "stop", "discard", "show", "logs", "wait"] {
        says(&call(&lab, &[verb, "nosuch"], 125), "no run with the name or id \"nosuch\"");
    }
    call(&lab, &["rm", "-f", "new", "nosuch"], 125);
    call(&lab, &["show", "new"], 0);
}

#[test]
fn ps_shows_what_waits_for_review_and_its_size() {
    let lab = Lab::me();
    let overlay = ["run", "-q", "--name", "new", "--workspace", ".:overlay"];
    let script = "head -c 3000000 /dev/zero > zeros";
    let words: Vec<&str> = overlay.iter().copied().chain(["sh", "-c", script]).collect();
    call(&lab, &words, 0);
    call(&lab, &["run", "-q", "--name", "plain", "true"], 0);
    let table = call(&lab, &["ps", "-a"], 0).out();
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("new").contains("exited 0, review"), "{table}");
    assert!(row("new").contains(" 2M "), "{table}");
    assert!(!row("plain").contains("review"), "{table}");
    let data = call(&lab, &["ps", "-a", "--json", "--name", "new"], 0).json();
    assert_eq!(data[0]["unreviewed"], true, "{data}");
    assert!(data[0]["disk_bytes"].as_u64().unwrap() > 3_000_000, "{data}");
    call(&lab, &["discard", "-q", "-y", "new"], 0);
    let data = call(&lab, &["ps", "-a", "--json", "--name", "new"], 0).json();
    assert_eq!(data[0]["unreviewed"], false, "{data}");
    assert!(data[0]["disk_bytes"].as_u64().unwrap() < 100_000, "{data}");
}

#[test]
fn what_a_record_does_not_have_is_an_error() {
    let lab = Lab::me();
    call(&lab, &["run", "--keep", "--name", "box"], 0);
    call(&lab, &["exec", "box", "echo", "one"], 0);
    // The record of output is written in groups.
    let is_recorded = || call(&lab, &["logs", "--exec", "1", "box"], 0).out() == "one\n";
    assert!(until(std::time::Duration::from_secs(20), is_recorded), "no output");
    says(&call(&lab, &["logs", "--exec", "7", "box"], 125), "has no command number 7");
    says(
        &call(&lab, &["events", "--kind", "nosuch", "box"], 2),
        "no event has the kind \"nosuch\"",
    );
    assert!(
        call(&lab, &["events", "--kind", "exec.start", "box"], 0).out().contains("\"exec.start\"")
    );
    call(&lab, &["stop", "box"], 0);
}

#[test]
fn doctor_begins_with_a_verdict_and_leaves_no_run() {
    let lab = Lab::me();
    let doctor = lab
        .belljar(["doctor"])
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("CONTAINER_HOST", "unix:///nowhere/podman.sock")
        .done();
    let first = doctor.out().lines().next().unwrap_or_default().to_owned();
    match doctor.code() {
        0 => assert!(
            first.starts_with("Ready") && first.contains("uses the jail backend"),
            "{first}"
        ),
        _ => assert!(first.starts_with("Not ready: no backend works here"), "{first}"),
    }
    assert_eq!(call(&lab, &["ps", "-aq"], 0).out(), "", "a canary is listed");
    assert!(lab.runs().is_empty(), "a canary is left");
    call(&lab, &["run", "-q", "true"], 0);
    assert_eq!(call(&lab, &["ps", "-aq"], 0).out().lines().count(), 1, "the control");
}

#[test]
fn prove_counts_its_cases_in_groups_and_ends_with_a_verdict() {
    let lab = Lab::me();
    let cases = ["--case", "fs.remount-writable", "--case", "fs.write-readonly"];
    let list = call(&lab, &["prove", "--list"], 0).out();
    let known: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    let fs: Vec<&str> =
        known.iter().filter(|name| name.starts_with("fs.")).copied().take(2).collect();
    let words = ["prove", "--backend", "jail", cases[0], fs[0], cases[2], fs[1]];
    let done = call(&lab, &words, 0);
    let out = done.out();
    assert!(out.starts_with("fs (1 of 2)\n"), "{out}");
    let last = out.lines().last().unwrap_or_default();
    assert!(last.starts_with("the boundary held: 2 cases, "), "{out}");
}

/// A line without its colours.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in line.chars() {
        match (inside, c) {
            (false, '\u{1b}') => inside = true,
            (true, 'm' | 'K') => inside = false,
            (false, c) => text.push(c),
            _ => {}
        }
    }
    text
}

/// All but data for programs, and commands to paste.
#[test]
fn nothing_is_wider_than_80_columns() {
    let lab = Lab::me();
    let overlay = ["--name", "new", "--workspace", ".:overlay", "sh", "-c", "echo x > file"];
    call(&lab, &[&["run", "-q", "--backend", "jail"][..], &overlay].concat(), 0);
    let missing = format!("/{}:/x", "nosuch/".repeat(9));
    let calls: &[&[&str]] = &[
        &["--help"],
        &["run", "--help"],
        &["network", "--help"],
        &["run", "--backend", "jail", "true"],
        &["run", "--backend", "jail", "no-such-program"],
        &["run", "--backend", "jail", "-v", &missing, "true"],
        &["run", "--backend", "jail", "--require", "kernel.separate", "true"],
        &["run", "--backend", "jail", "--image", "tools", "--pull", "never", "true"],
        &["run", "--backend", "host", "true"],
        &["run", "--backend", "jail", "--timeout", "1s", "sleep", "60"],
        &["run", "--network", "host", "true"],
        &["run", "--workspace", ".:overlya", "true"],
        &["run", "--privileged", "true"],
        &["run", "--dry-run", "true"],
        &["kill", "new"],
        &["stop"],
        &["stop", "nosuch"],
        &["exec", "-u", "0", "new", "id"],
        &["exec", "new", "true"],
        &["resume", "new"],
        &["fork", "new"],
        &["logs", "--exec", "7", "new"],
        &["events", "--kind", "nosuch", "new"],
        &["ps", "-a"],
        &["show", "new"],
        &["diff", "new"],
        &["why", "new"],
        &["verify", "new"],
        &["doctor"],
        &["backends"],
        &["prove", "--case", "nosuch"],
        &["discard", "-y", "new"],
        &["prune", "--keep", "0"],
    ];
    for words in calls {
        let call = lab.belljar(*words);
        let call = call.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        let call = call.env("CONTAINER_HOST", "unix:///nowhere/podman.sock");
        let shown = PtyRun::start(&call.through(PtyRun::SESSION), 24, 80).end().1;
        assert!(!shown.trim().is_empty(), "{words:?}");
        for line in shown.lines() {
            let line = plain(line);
            assert!(line.trim_end().chars().count() <= 80, "{words:?}: {line:?}");
        }
    }
}

#[test]
fn the_first_line_names_what_is_unusual_and_lines_wrap_by_words() {
    let lab = Lab::me();
    let screen = |words: &[&str]| {
        PtyRun::start(&lab.belljar(words).through(PtyRun::SESSION), 24, 80).end().1
    };
    let usual = screen(&["run", "--backend", "jail", "true"]);
    let first = usual.lines().next().unwrap_or_default();
    assert!(
        first.ends_with("jail\u{1b}[0m, attested") || first.ends_with("jail, attested"),
        "{usual:?}"
    );
    let waived =
        screen(&["run", "--backend", "jail", "--disk", "1g", "--waive", "fs.quota=a test", "true"]);
    assert!(waived.contains("attested; waived: fs.quota"), "{waived:?}");
    let refused = screen(&["run", "--backend", "jail", "--require", "kernel.separate", "true"]);
    let long = screen(&[
        "run",
        "--backend",
        "jail",
        "-v",
        &format!("/{}:/x", "nosuch/".repeat(5)),
        "true",
    ]);
    for line in refused.lines().chain(long.lines()) {
        assert!(plain(line).trim_end().chars().count() <= 80, "{line:?}");
    }
    assert!(long.lines().count() > 1, "{long:?}");
}

#[test]
fn belljar_inside_a_run_says_so() {
    let lab = Lab::me();
    let exe = belljar_testkit::executable().display().to_string();
    let mount = format!("{exe}:/opt/belljar");
    let done = call(
        &lab,
        &["run", "-q", "--backend", "jail", "-v", &mount, "/opt/belljar", "run", "true"],
        125,
    );
    let run = lab.runs().remove(0);
    says(&done, &format!("hint:  already inside run {run}: a sandbox cannot start another"));
}
