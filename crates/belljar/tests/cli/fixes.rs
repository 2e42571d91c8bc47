//! Each fix that a posture names is followed: provoked, done as it says, and seen to help.

use belljar_testkit::{Actor, Lab, TestEngine, as_root, test_user};
use serde_json::Value;

/// The posture of a run with these flags; clauses that stop it are waived.
fn posture(lab: &Lab, flags: &[&str]) -> Value {
    let words = [&["run", "--no-config", "--json", "--backend", "jail"], flags, &["true"]].concat();
    let done = lab.belljar(&words).done();
    done.expect(0);
    done.json()["posture"].clone()
}

/// The fix of a clause that is not enforced with these flags.
fn fix(lab: &Lab, flags: &[&str], clause: &str) -> String {
    let posture = posture(lab, flags);
    let found = &posture[clause];
    assert_ne!(found["status"], "enforced", "{clause}: {found}");
    found["fix"].as_str().unwrap_or_else(|| panic!("{clause} has no fix: {found}")).to_owned()
}

fn status(lab: &Lab, flags: &[&str], clause: &str) -> String {
    posture(lab, flags)[clause]["status"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_limit_that_is_not_set_is_set() {
    let lab = Lab::new(if as_root() { Actor::Me } else { Actor::Delegated });
    for (clause, flag, value) in [
        ("limit.memory", "--memory", "64m"),
        ("limit.cpu", "--cpus", "1"),
        ("limit.pids", "--pids-limit", "100"),
    ] {
        assert_eq!(fix(&lab, &[flag, "none"], clause), format!("set one: {flag}"));
        assert_eq!(status(&lab, &[flag, value], clause), "enforced", "{clause}");
    }
}

#[test]
fn a_disk_limit_that_is_not_set_is_set() {
    let lab = Lab::me();
    let fix = fix(&lab, &["--disk", "none"], "fs.quota");
    let flags = fix.strip_prefix("set one: ").unwrap_or_else(|| panic!("{fix}"));
    let flags = flags.replace("SIZE", "1g").replace("REASON", "a-test");
    let flags: Vec<&str> = flags.split(' ').collect();
    assert_eq!(status(&lab, &flags, "fs.quota"), "weaker");
}

#[test]
fn a_tree_is_mounted_without_its_sockets() {
    let lab = Lab::me();
    assert_eq!(fix(&lab, &["--workspace", ".:rw"], "fs.sockets"), "mount it overlay or ro");
    for mode in [".:overlay", ".:ro"] {
        assert_eq!(status(&lab, &["--workspace", mode], "fs.sockets"), "enforced", "{mode}");
    }
}

#[test]
fn hosts_are_named_instead_of_all() {
    let lab = Lab::me();
    let all = ["--allow-host", "*", "--waive", "net.sealed=a test"];
    let fix = fix(&lab, &all, "net.sealed");
    assert_eq!(fix, "name the hosts; belljar run --learn finds them");
    let learned = lab.belljar(["run", "--no-config", "--learn", "true"]).done();
    assert!(learned.expect(0).err().contains("[network]\nallow = []"), "{learned}");
    assert_eq!(status(&lab, &["--allow-host", "a.example"], "net.sealed"), "enforced");
}

#[test]
fn root_gives_each_run_its_own_uid() {
    if !as_root() || test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user and as root");
        return;
    }
    let user = Lab::new(Actor::User);
    let fix = fix(&user, &["--workspace", "none"], "id.unique");
    assert_eq!(fix, "run belljar as root, which can give each run its own uid");
    let root = Lab::new(Actor::Me);
    assert_eq!(status(&root, &["--workspace", "none"], "id.unique"), "enforced");
}

/// What `sudo belljar setup` does is followed in `jail::setup`.
#[test]
fn an_ordinary_user_without_control_groups_is_led_to_setup() {
    if test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user");
        return;
    }
    let lab = Lab::new(Actor::Nameless);
    let fix = fix(&lab, &[], "limit.memory");
    assert!(fix.starts_with("sudo belljar setup"), "{fix}");
}

#[test]
fn gvisor_has_a_kernel_of_its_own() {
    let lab = Lab::me();
    let fix = fix(&lab, &[], "kernel.separate");
    assert_eq!(fix, "gVisor, in a container: --backend docker --oci-runtime runsc");
    let Some(lab) = TestEngine::Runsc.lab() else { return };
    let result = lab.run(["--json", "--", "true"]).done().json();
    assert_eq!(result["posture"]["kernel.separate"]["status"], "enforced", "{result:#}");
    assert_eq!(result["backend"], "docker", "{result:#}");
}
