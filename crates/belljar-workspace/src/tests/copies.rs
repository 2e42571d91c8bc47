//! A tree that was copied: what the run did is told from what others did meanwhile.

use std::time::Duration;

use belljar_spec::{Backing, Moment};

use super::support::*;

/// Long enough for the clock of inodes to go on.
fn wait() {
    std::thread::sleep(Duration::from_millis(20));
}

fn now() -> Moment {
    wait();
    let now = Moment::from(std::time::SystemTime::now());
    wait();
    now
}

fn copied() -> (Stage, Backing) {
    let mut stage = Stage::new();
    for path in ["a", "b", "d/x", "d/y", "e/z"] {
        write(stage.lower(path), format!("{path}\n{path}\n"));
    }
    stage.since = now();
    for path in ["a", "b", "d/x", "d/y", "e/z"] {
        write(stage.upper(path), format!("{path}\n{path}\n"));
    }
    let copied = now();
    (stage, Backing::Copy { copied })
}

#[test]
fn what_the_run_did_is_found() {
    let (stage, backing) = copied();
    assert_eq!(words(&stage.changes(backing)), [""; 0]);
    write(stage.upper("a"), "more");
    std::fs::rename(stage.upper("d/x"), stage.upper("d/new")).unwrap();
    write(stage.upper("n/f"), "1");
    std::fs::remove_file(stage.upper("b")).unwrap();
    assert_eq!(words(&stage.changes(backing)), ["M a", "D b", "R d/x -> d/new", "A n", "A n/f"]);
}

#[test]
fn what_others_did_in_the_real_tree_is_not_the_runs() {
    let (stage, backing) = copied();
    write(stage.lower("a"), "somebody was here");
    write(stage.lower("d/others"), "made meanwhile");
    write(stage.lower("new/f"), "made meanwhile");
    std::fs::remove_file(stage.lower("e/z")).unwrap();
    assert_eq!(words(&stage.changes(backing)), [""; 0]);
    // Also where the run worked in the same directory.
    write(stage.upper("d/own"), "of the run");
    write(stage.upper("own"), "of the run");
    assert_eq!(words(&stage.changes(backing)), ["A d/own", "A own"]);
}

#[test]
fn directories_that_changed_places_are_not_taken_for_untouched() {
    let (stage, backing) = copied();
    write(stage.lower("e/x"), "other content of the same name");
    let stage = Stage { since: now(), ..stage };
    write(stage.upper("e/x"), "other content of the same name");
    let Backing::Copy { .. } = backing else { unreachable!() };
    let backing = Backing::Copy { copied: now() };
    std::fs::rename(stage.upper("d"), stage.upper("t")).unwrap();
    std::fs::rename(stage.upper("e"), stage.upper("d")).unwrap();
    std::fs::rename(stage.upper("t"), stage.upper("e")).unwrap();
    let changes = stage.changes(backing);
    assert_eq!(words(&changes), ["M d/x", "R e/z -> d/z", "M e/x", "R d/y -> e/y"]);
}

#[test]
fn what_is_never_copied_was_not_removed() {
    let mut stage = Stage::new();
    write(stage.lower("f"), "1");
    std::os::unix::net::UnixListener::bind(stage.lower("socket")).unwrap();
    stage.since = NEVER;
    write(stage.upper("new"), "2");
    assert_eq!(words(&stage.changes(COPY)), ["D f", "A new"]);
}
