//! As a person works: `init`, a night of an agent over a git repository, a crash, `resume`, and the morning after.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use belljar_testkit::{
    Lab, TestEngine, built, each_user, processes_of, processes_with, send, until,
};
use rustix::process::Signal;
use serde_json::Value;

/// What the stand-in is to do in each iteration.
const PROMPT: &str = "count n
append log.txt worked
write src/answer.txt forty-two
run ls src
tokens 1000 100
cost 0.25
turns 2
sleep 0.7
say All is well.
done-when n 5 ALL DONE
";

/// A program of the host's that speaks as claude does.
fn install(lab: &Lab) -> PathBuf {
    let built = built("examples/stand_in_agent");
    let bytes = fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    let program = lab.make_file("person/agents/bin/claude", bytes);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.parent().unwrap().to_owned()
}

fn git(lab: &Lab, words: &[&str]) -> String {
    let work = lab.work();
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@example.org"]);
    git.arg("-C").arg(&work).args(words).env("HOME", "/nonexistent");
    let done = git.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
    assert!(done.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn numbers(shown: &Value) -> Vec<u64> {
    let all = shown["iterations"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| one["iteration"].as_u64().unwrap()).collect()
}

fn a_night(lab: &Lab, backend: &str) {
    lab.make_file("work/src/main.c", "int main() { return 0; }\n");
    lab.make_file("work/PROMPT.md", PROMPT);
    git(lab, &["init", "-q"]);
    git(lab, &["add", "-A"]);
    git(lab, &["commit", "-q", "-m", "first"]);
    if let Some(user) = lab.actor.user() {
        let owner = format!("{}:{}", user.uid, user.gid);
        assert!(
            Command::new("chown").args(["-R", &owner]).arg(lab.work()).status().unwrap().success()
        );
    }
    let path = format!("{}:/usr/bin:/bin", install(lab).display());
    let call = |words: &[&str]| lab.belljar(words).env("PATH", &path);

    let words = ["init", "--yes", "--backend", backend, "--agent", "claude", "--prompt-file"];
    let more =
        ["PROMPT.md", "--until-says", "ALL DONE", "--max-iterations", "9", "--max-cost-usd", "10"];
    let made = call(&[&words[..], &more].concat()).done();
    made.expect(0).says(&["belljar run"]);

    // The night, until somebody pulls the plug in iteration 3.
    // The stand-in needs no login.
    let night = lab.run(["--yes", "--name", "night"]).env("PATH", &path).spawn();
    let shown = || call(&["show", "--json", "night"]).done();
    assert!(
        until(Duration::from_secs(90), || {
            let shown = shown();
            shown.code() == 0 && numbers(&shown.json()) == [1, 2]
        }),
        "{}",
        night.done()
    );
    std::thread::sleep(Duration::from_millis(200)); // now it is in the third
    let supervisors = processes_with("__supervise");
    let ours = processes_of(&lab.exe);
    supervisors
        .into_iter()
        .filter(|pid| ours.contains(pid))
        .for_each(|pid| send(pid, Signal::KILL));
    let ended = night.done();
    assert_ne!(ended.code(), 0, "{ended}");
    assert!(ended.err().contains("belljar resume"), "it says what to do: {ended}");

    // The morning after.
    let resumed = call(&["resume", "night"]).done();
    resumed.expect(0);
    for part in ["iteration 3", "iteration 5", "All is well.", "ALL DONE", "ls src"] {
        assert!(resumed.out().contains(part), "{part}: {resumed}");
    }
    assert!(resumed.out().lines().all(|line| line.chars().count() <= 80), "{resumed}");
    let shown = shown().json();
    assert_eq!(numbers(&shown), [1, 2, 3, 4, 5], "{shown:#}");
    assert_eq!(shown["reason"], "done");
    let totals = &shown["agent"]["totals"];
    assert_eq!(totals["iterations"], 5, "{shown:#}");
    let cost = totals["usage"]["cost_usd"].as_f64().unwrap();
    // What the killed iteration told before it died was spent too.
    assert!((1.25..=1.51).contains(&cost), "{shown:#}");
    let page = call(&["show", "night"]).done();
    // Ids and paths above it are as long as they are.
    let out = page.out();
    let table: Vec<&str> = out.lines().skip_while(|line| !line.contains("LAST MESSAGE")).collect();
    assert!(table.len() >= 6 && table.iter().all(|line| line.chars().count() <= 80), "{page}");
    let logged = call(&["logs", "--agent", "night"]).done();
    assert!(logged.expect(0).out().contains("All is well."), "{logged}");

    let changed = call(&["diff", "--name-only", "night"]).done().out();
    assert_eq!(changed, "log.txt\nn\nsrc/answer.txt\n");
    let patch = call(&["diff", "-p", "night", "log.txt"]).done().out();
    assert_eq!(patch.matches("+worked").count(), 5, "each iteration once: {patch}");
    call(&["apply", "-y", "night", "src"]).done().expect(0);
    assert_eq!(fs::read_to_string(lab.work().join("src/answer.txt")).unwrap(), "forty-two\n");
    assert!(!lab.work().join("log.txt").exists());
    let status = git(lab, &["status", "--short", "--untracked-files=all"]);
    assert_eq!(status, "?? belljar.toml\n?? src/answer.txt\n");
    call(&["verify", "night"]).done().expect(0);
    lab.assert_all_sound();
    lab.assert_nothing_lives(&lab.runs());
}

#[test]
fn from_init_to_apply_in_the_jail() {
    each_user(|lab| a_night(lab, "jail"));
}

#[test]
fn from_init_to_apply_on_docker() {
    if let Some(lab) = TestEngine::Docker.lab() {
        a_night(&lab, "docker");
    }
}
