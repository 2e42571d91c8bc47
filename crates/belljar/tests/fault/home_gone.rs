//! A home that is deleted while a run of it lives: what the run leaves on the host is found without it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use belljar_testkit::{Lab, as_root, cgroups_named, processes_of, send, until};
use rustix::process::Signal;

/// Takes the control groups away that a failed test would leave.
struct Groups(String);

impl Groups {
    fn left(&self) -> Vec<PathBuf> {
        cgroups_named(std::slice::from_ref(&self.0))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in self.left() {
            let _ = fs::remove_dir(group); // a group that is in use stays, and the test has failed
        }
    }
}

/// A live run whose home is taken away, and whose processes are then killed, so that nobody tidies up.
fn orphan() -> (Lab, Groups) {
    let lab = Lab::me();
    let words = ["-q", "--no-config", "-d", "--", "sleep", "1000"];
    let id = lab.run(words).done().expect(0).out().trim().to_owned();
    fs::remove_dir_all(lab.home()).unwrap();
    let kill = || {
        processes_of(&lab.exe).into_iter().for_each(|pid| send(pid, Signal::KILL));
        processes_of(&lab.exe).is_empty()
    };
    assert!(until(Duration::from_secs(20), kill));
    (lab, Groups(id))
}

/// Empty control groups whose home is gone are removed by any later command that may do so.
#[test]
fn control_groups_of_a_home_that_is_gone_are_removed() {
    if !as_root() {
        eprintln!("NOT CHECKED: control groups of another home are root's to remove");
        return;
    }
    let other = Lab::me();
    let live = other.run(["-q", "--no-config", "-d", "--", "sleep", "1000"]).done().expect(0).out();
    let live = live.trim().to_owned();
    // The end of a run of any other test may be faster.
    let made = (0..5).map(|_| orphan()).find(|(_, groups)| !groups.left().is_empty());
    let (_gone, groups) = made.expect("the control: there is something to remove");
    let third = Lab::me();
    third.belljar(["reconcile"]).done().expect(0);
    let gone = until(Duration::from_secs(5), || groups.left().is_empty());
    assert!(gone, "left: {:?}", groups.left());
    // The control: those of a live run whose home is there stay, and it lives.
    assert!(!cgroups_named(std::slice::from_ref(&live)).is_empty());
    other.belljar(["exec", &live, "--", "true"]).done().expect(0);
    other.belljar(["stop", "-t", "0", &live]).done().expect(0);
}

/// Not by that command alone: the next run does it too.
#[test]
fn the_next_run_of_another_home_removes_them_too() {
    if !as_root() {
        eprintln!("NOT CHECKED: control groups of another home are root's to remove");
        return;
    }
    let (_gone, groups) = orphan();
    assert!(!groups.left().is_empty(), "the control");
    let other = Lab::me();
    other.run(["-q", "--no-config", "--", "true"]).done().expect(0);
    let gone = until(Duration::from_secs(5), || groups.left().is_empty());
    assert!(gone, "left: {:?}", groups.left());
}
