//! `belljar setup` for real: an ordinary user without limits, then with them, then without.
//!
//! The files that it writes are those of a mount namespace of the test; the control groups are the machine's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use belljar_testkit::{Actor, Done, Lab, TestEngine, as_root, send, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const NAME: &str = "belljar-setup-test";
const MEMORY_BOMB: &str = "x=0123456789abcdef; while :; do x=$x$x; done";
/// Shows `/etc` and `/var/lib` with the changes of the test only.
const IN_OWN_FILES: &str = "\
mkdir -p /var/lib && cd \"$1\" && mkdir -p etc etc.work lib lib.work &&
mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc.work overlay /etc &&
mount -t overlay -o lowerdir=/var/lib,upperdir=lib,workdir=lib.work overlay /var/lib &&
shift && exec \"$@\"";

struct Host {
    lab: Lab,
    files: PathBuf,
}

impl Host {
    /// `None` where there is nothing to set up; reported.
    fn new() -> Option<Self> {
        if !as_root() || TestEngine::of_this_test_run().is_some() {
            eprintln!("NOT CHECKED: belljar setup (needs root, and the jail)");
            return None;
        }
        let lab = Lab::new(Actor::Nameless);
        let files = lab.path("files");
        fs::create_dir_all(files.join("etc")).unwrap();
        let id = lab.actor.user().unwrap().uid;
        let line = format!("{NAME}:x:{id}:{id}::/:/bin/sh\n");
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        fs::write(files.join("etc/passwd"), passwd + &line).unwrap();
        Some(Self { lab, files })
    }

    /// A command of root's.
    fn root(&self, command: &[&str]) -> Output {
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", IN_OWN_FILES, "sh"]).arg(&self.files).args(command);
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.files.display());
        unshare.env_clear().env("PATH", path).output().unwrap()
    }

    /// `belljar setup …` as root.
    fn setup(&self, words: &[&str]) -> (Option<i32>, String) {
        let exe = self.lab.exe.to_str().unwrap();
        let done = self.root(&[&[exe, "setup"], words].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    }

    fn setup_json(&self, words: &[&str]) -> Value {
        let (_, text) = self.setup(&[&["--json", "--user", NAME], words].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The user's control groups.
    fn groups(&self) -> Vec<PathBuf> {
        let name = belljar::spec::user_cgroup(self.lab.actor.user().unwrap().uid);
        let top = Path::new("/sys/fs/cgroup");
        let places = fs::read_dir(top).unwrap().flatten().map(|entry| entry.path());
        let places = places.chain([top.to_owned()]).map(|place| place.join(&name));
        places.filter(|place| place.is_dir()).collect()
    }

    /// `belljar run -m 64m …` of the user. On cgroup v2 without systemd a shell is moved into the group first.
    fn bomb(&self) -> Done {
        let words = ["--json", "-m", "64m", "--timeout", "50s", "--", "sh", "-c", MEMORY_BOMB];
        let join =
            self.groups().into_iter().find(|group| group.join("cgroup.controllers").exists());
        let Some(group) = join else { return self.lab.run(words).done() };
        let wait = ["sh", "-c", "kill -STOP $$; exec \"$@\"", "sh"];
        let live = self.lab.run(words).through(&wait).spawn();
        let pid = live.pid();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        assert!(until(Duration::from_secs(20), is_stopped), "the shell did not stop itself");
        fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        send(pid, Signal::CONT);
        live.done()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for group in self.groups() {
            let below = fs::read_dir(&group).into_iter().flatten().flatten();
            for entry in below.filter(|entry| entry.path().is_dir()) {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(&group);
        }
    }
}

fn state(report: &Value, step: &str) -> String {
    let steps = report["steps"].as_array().unwrap();
    let found = steps.iter().find(|found| found["name"] == step).unwrap();
    found["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_user_gets_limits_by_setup_and_loses_them_by_its_undo() {
    let Some(host) = Host::new() else { return };
    // Before: refused, and the refusal names the command.
    let refused = host.lab.run(["-m", "64m", "--", "true"]).done();
    refused.expect(125).says(&["limit.memory", "belljar setup"]);
    let weaker = host.lab.sh_json(&[], "true");
    assert_eq!(weaker["posture"]["limit.memory"]["status"], "weaker", "{weaker:#}");
    let examined = host.setup_json(&[]);
    assert_eq!(state(&examined, "control-group"), "needed", "{examined:#}");
    assert_eq!(examined["changed"], false);
    assert_eq!(host.groups(), Vec::<PathBuf>::new(), "without --yes nothing is changed");

    let made = host.setup_json(&["--yes"]);
    assert_eq!(state(&made, "control-group"), "made", "{made:#}");
    assert_eq!(made["changed"], true);
    let done = host.bomb();
    let result = done.expect(137).json();
    assert_eq!(result["reason"], "oom", "{result:#}");
    assert_eq!(result["posture"]["limit.memory"]["status"], "enforced", "{result:#}");
    let (code, text) = host.setup(&["--user", NAME, "--yes"]);
    assert!(code == Some(0) && text.contains("nothing to do"), "{text}");
    let subuid = fs::read_to_string(host.files.join("etc/subuid")).unwrap();
    assert_eq!(subuid.matches(NAME).count(), 1, "{subuid}");

    let (code, text) = host.setup(&["--undo", "--yes"]);
    assert!(code == Some(0) && text.contains("undone"), "{text}");
    assert_eq!(host.groups(), Vec::<PathBuf>::new());
    let subuid = fs::read_to_string(host.files.join("etc/subuid")).unwrap();
    assert!(!subuid.contains(NAME), "{subuid}");
    assert!(!host.files.join("lib/belljar/setup.json").exists());
    host.lab.run(["-m", "64m", "--", "true"]).done().expect(125);
    let (code, text) = host.setup(&["--undo", "--yes"]);
    assert!(code == Some(0) && text.contains("nothing to do"), "{text}");
}

/// Each command as it is printed, by a shell, with a `sudo` that only starts what it is given.
#[test]
fn the_commands_that_setup_prints_do_the_same() {
    let Some(host) = Host::new() else { return };
    let sudo = host.files.join("sudo");
    fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755)).unwrap();
    let examined = host.setup_json(&[]);
    let steps = examined["steps"].as_array().unwrap();
    let commands = steps.iter().flat_map(|step| step["commands"].as_array().cloned());
    let commands: Vec<String> =
        commands.flatten().map(|line| line.as_str().unwrap().to_owned()).collect();
    assert!(commands.iter().any(|line| line.contains("/etc/subuid")), "{commands:?}");
    for command in &commands {
        let done = host.root(&["sh", "-c", command]);
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let (code, text) = host.setup(&["--user", NAME]);
    assert!(code == Some(0) && text.contains("nothing to do"), "{text}");
    assert_eq!(host.bomb().json()["reason"], "oom");
    // What others made is not setup's to undo.
    let (code, text) = host.setup(&["--undo", "--yes"]);
    assert!(code == Some(0) && text.contains("setup made nothing"), "{text}");
    assert!(!host.groups().is_empty());
}

/// The lock is the machine's: while another process holds it nothing is changed.
#[test]
fn two_setups_at_once_take_turns() {
    let Some(host) = Host::new() else { return };
    let exe = host.lab.exe.to_str().unwrap();
    let script = "\"$0\" setup --json --user \"$1\" --yes >one & \"$0\" setup --json --user \"$1\" --yes >two; \
                  wait; cat one two; rm one two";
    let done = host.root(&["sh", "-c", script, exe, NAME]);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let reports: Vec<Value> = serde_json::Deserializer::from_str(&text)
        .into_iter()
        .map(|report| report.unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect();
    let mut states: Vec<String> = reports.iter().map(|one| state(one, "control-group")).collect();
    states.sort();
    assert_eq!(states, ["made", "ready"], "{text}");
    let subuid = fs::read_to_string(host.files.join("etc/subuid")).unwrap();
    assert_eq!(subuid.matches(NAME).count(), 1, "{subuid}");
    let (code, text) = host.setup(&["--undo", "--yes", "--user", NAME]);
    assert!(code == Some(0) && text.contains("undone"), "{text}");
    assert_eq!(host.groups(), Vec::<PathBuf>::new());
}

#[test]
fn what_was_changed_since_is_left_and_named() {
    let Some(host) = Host::new() else { return };
    host.setup_json(&["--yes"]);
    let group = host.groups().remove(0);
    std::os::unix::fs::chown(&group, Some(0), Some(0)).unwrap();
    let (code, text) = host.setup(&["--undo", "--yes", "--json"]);
    let undone: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, Some(1), "{undone:#}");
    assert_eq!(undone["left"][0]["what"], json!(group.to_str().unwrap()), "{undone:#}");
    assert!(group.is_dir());
    assert!(undone["removed"].to_string().contains("/etc/subuid"), "{undone:#}");
}
