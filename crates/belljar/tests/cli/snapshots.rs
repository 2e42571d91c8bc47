//! Snapshots of what a user reads: help, common errors, `ps`, `show`, `diff` and `doctor`.
//!
//! To accept a changed text: `INSTA_UPDATE=always cargo nextest run -p belljar --test cli snapshots`.

use std::fs;

use belljar_testkit::{Actor, Done, Lab, test_user};
use insta::assert_snapshot;

/// Replaces what differs from run to run: ids, paths and the version.
fn stable(lab: &Lab, text: &str) -> String {
    let mut text = text.replace(&lab.path("").display().to_string(), "[LAB]/");
    for run in lab.runs() {
        text = text.replace(&run, "[RUN]");
        text = text.replace(&run[run.len() - 7..], "[TAIL] ");
    }
    text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
}

/// The exit code and both streams.
fn shown(lab: &Lab, done: &Done) -> String {
    let (out, err) = (stable(lab, &done.out()), stable(lab, &done.err()));
    format!("exit code {}\n----- stdout -----\n{out}----- stderr -----\n{err}", done.code())
}

fn call(lab: &Lab, arguments: &[&str]) -> String {
    shown(lab, &lab.belljar(arguments).done())
}

/// Always the jail: what an engine enforces is another snapshot.
fn lab() -> Lab {
    Lab::new(Actor::Me)
}

const JAIL: [&str; 3] = ["run", "--backend", "jail"];

fn run(lab: &Lab, arguments: &[&str]) -> Done {
    lab.belljar(JAIL.iter().chain(arguments)).done()
}

#[test]
fn help() {
    let lab = lab();
    let top = lab.belljar(["--help"]).done().expect(0).out();
    assert_snapshot!("help", stable(&lab, &top));
    let mut seen = 0;
    for verb in crate::about::listed_commands(&top) {
        let page = lab.belljar([verb.as_str(), "--help"]).done().expect(0).out();
        assert_snapshot!(format!("help_{verb}"), stable(&lab, &page));
        seen += 1;
    }
    assert!(seen >= 30, "{seen} verbs");
    for verb in
        [["config", "show"], ["config", "schema"], ["image", "build"], ["image", "dockerfile"]]
    {
        let page = lab.belljar([verb[0], verb[1], "--help"]).done().expect(0).out();
        assert_snapshot!(format!("help_{}_{}", verb[0], verb[1]), stable(&lab, &page));
    }
}

#[test]
fn wrong_usage() {
    let lab = lab();
    assert_snapshot!(
        "unknown_flag",
        call(&lab, &["run", "--allow-hosts", "pypi.org", "--", "true"])
    );
    assert_snapshot!("unknown_verb", call(&lab, &["strat"]));
    assert_snapshot!("word_of_docker", call(&lab, &["kill", "web"]));
    assert_snapshot!("missing_run", call(&lab, &["stop"]));
    assert_snapshot!("missing_command", call(&lab, &["run"]));
    assert_snapshot!("bad_memory", call(&lab, &["run", "-m", "lots", "--", "true"]));
    assert_snapshot!("bad_network", call(&lab, &["run", "--network", "host", "--", "true"]));
    assert_snapshot!("cp_without_run", call(&lab, &["cp", "a", "b"]));
    assert_snapshot!("no_terminal", call(&lab, &["init"]));
}

#[test]
fn runs_that_are_not_found() {
    let lab = lab();
    assert_snapshot!("unknown_run", call(&lab, &["show", "night"]));
    for _ in 0..2 {
        run(&lab, &["--", "true"]).expect(0);
    }
    // Ids start with the time, so these two share their first characters.
    let start = lab.runs().remove(0)[..4].to_owned();
    let ambiguous = call(&lab, &["show", &start]).replace(&start, "[START]");
    assert_snapshot!("ambiguous_run", ambiguous);
    let ended = lab.runs().remove(0);
    assert_snapshot!("exec_in_an_ended_run", call(&lab, &["exec", &ended, "--", "true"]));
}

#[test]
fn commands_that_do_not_start() {
    let lab = lab();
    assert_snapshot!("not_found", shown(&lab, &run(&lab, &["--", "no-such-program"])));
    lab.make_file("work/text", "no program\n");
    assert_snapshot!("not_executable", shown(&lab, &run(&lab, &["--", "./text"])));
}

#[test]
fn manifests_that_are_refused() {
    let lab = lab();
    lab.make_file("work/belljar.toml", "[limits]\nmemroy = \"1g\"\n");
    assert_snapshot!("bad_manifest_key", shown(&lab, &run(&lab, &["--", "true"])));
    lab.make_file("work/belljar.toml", "[network]\nallow = [\"example.com\"]\n");
    assert_snapshot!("untrusted_manifest", shown(&lab, &run(&lab, &["--", "true"])));
}

#[test]
fn a_memory_limit_that_cannot_be_enforced() {
    if test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    }
    let lab = Lab::new(Actor::User);
    let refused = shown(&lab, &run(&lab, &["-m", "512m", "--", "true"]));
    assert_snapshot!("memory_limit", without_reasons(&refused));
}

#[test]
fn a_clause_that_is_not_enforced() {
    let lab = lab();
    let done = run(&lab, &["--require", "kernel.separate", "--", "true"]);
    assert_snapshot!("unmet_clause", shown(&lab, &done));
}

#[test]
fn ps_show_and_diff() {
    let lab = lab();
    lab.make_file("work/list", "one\ntwo\n");
    lab.make_file("work/old", "old\n");
    let script =
        "echo three >> list; rm old; mkdir new; echo 1 > new/file; echo '{}' > package.json";
    let options = ["--workspace", ".:overlay", "--name", "night", "--quiet"];
    let command = ["--", "sh", "-c", script];
    run(&lab, &options.iter().chain(&command).copied().collect::<Vec<_>>()).expect(0);
    assert_snapshot!("ps", call(&lab, &["ps"]));
    assert_snapshot!("ps_all", without_ages(&call(&lab, &["ps", "-a"])));
    assert_snapshot!("diff", call(&lab, &["diff", "night"]));
    assert_snapshot!("diff_patch", call(&lab, &["diff", "-p", "night"]));
    assert_snapshot!("why", call(&lab, &["why", "night"]));
    assert_snapshot!("show", without_values(&call(&lab, &["show", "night"])));
    assert_snapshot!("apply_dry_run", call(&lab, &["apply", "--dry-run", "night"]));
    assert_snapshot!("discard_without_terminal", call(&lab, &["discard", "night"]));
    assert_snapshot!("rm_unreviewed", call(&lab, &["rm", "night"]));
    assert_eq!(fs::read_to_string(lab.work().join("list")).unwrap(), "one\ntwo\n");
}

#[test]
fn doctor() {
    let lab = lab();
    let doctor = lab
        .belljar(["doctor"])
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("CONTAINER_HOST", "unix:///nowhere/podman.sock");
    assert_snapshot!("doctor", without_statuses(&shown(&lab, &doctor.done())));
}

/// Replaces what depends on the machine in `doctor`: how each clause is enforced, and how long a canary took.
fn without_statuses(page: &str) -> String {
    let is_clause = |line: &&str| line.split(' ').nth(3).is_some_and(|name| name.contains('.'));
    let mut text = String::new();
    let mut in_clauses = false;
    for line in page.lines() {
        let clause = Some(line).filter(|line| line.starts_with("  ")).filter(is_clause);
        in_clauses = clause.is_some() || (in_clauses && line.starts_with("   "));
        match (clause.and_then(|line| line.split(' ').nth(3)), in_clauses) {
            (Some(name), _) => text.push_str(&format!("  [STATUS] {name:<17}  [REASON]\n")),
            (None, true) => {}
            (None, false) => match line.split_once(" attested in ") {
                Some((start, _)) => text.push_str(&format!("{start} attested in [TIME]\n")),
                None => text.push_str(&format!("{line}\n")),
            },
        }
    }
    text
}

/// Replaces the values of `show` that depend on the time, the machine or the user.
fn without_values(page: &str) -> String {
    let keys = ["when", "user", "limits", "posture", "used", "plan"];
    let mut text = String::new();
    let mut replaced = false;
    for line in page.lines() {
        let key = line.split(' ').next().unwrap_or_default();
        replaced = if key.is_empty() { replaced } else { keys.contains(&key) };
        match (replaced, key) {
            (true, "") => {}
            (true, key) => text.push_str(&format!("{key:<12}[{}]\n", key.to_uppercase())),
            (false, _) => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

/// Replaces the age of a run in `ps`, which is a few seconds, and its size on disk.
fn without_ages(page: &str) -> String {
    let is_age =
        |word: &&str| word.ends_with('s') && word.len() <= 3 && word.as_bytes()[0].is_ascii_digit();
    let line = |line: &str| match line.split(' ').find(is_age) {
        Some(age) => line.replacen(&format!("{age:>4}"), " [AGE]", 1),
        None => line.to_owned(),
    };
    let is_size = |word: &&str| {
        let digits = word.strip_suffix(['B', 'K']);
        digits
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    let sized = |text: String| match text.split(' ').find(is_size) {
        Some(size) => text.replacen(&format!("{size:>5}"), "[SIZE]", 1),
        None => text,
    };
    page.lines().map(|one| sized(line(one)) + "\n").collect()
}

/// Leaves out why a clause is not enforced, which depends on the machine.
fn without_reasons(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("   "));
    let short = |line: &str| match line.split_once(": ") {
        Some((clause, _)) if line.starts_with("  ") => format!("{clause}: [REASON]\n"),
        _ => format!("{line}\n"),
    };
    lines.map(short).collect()
}
