#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::copy::{Missed, unread};
use super::index::Index;
use super::walk::SnapshotBounds;
use super::*;

/// A tree of five entries and its root.
fn yard() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    for directory in ["tree/one", "tree/two", "restored"] {
        fs::create_dir_all(temp.path().join(directory)).unwrap();
    }
    for file in ["a", "one/b", "two/c"] {
        fs::write(temp.path().join("tree").join(file), file).unwrap();
    }
    temp
}

fn take_in(at: &Path) -> SnapshotSummary {
    let begun = Begun::now(at).unwrap();
    take(&at.join("tree"), &at.join("snapshot"), begun, None).unwrap()
}

#[test]
fn half_a_snapshot_is_not_restored() {
    for gone in [None, Some("a"), Some("two/c"), Some("two")] {
        let temp = yard();
        let at = temp.path();
        take_in(at);
        if let Some(gone) = gone {
            let path = at.join("snapshot").join(gone);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
        }
        let restored = restore(&at.join("snapshot"), &at.join("restored"));
        match gone {
            None => assert_eq!(restored.unwrap().files, 3, "the control"),
            Some(_) => {
                assert!(matches!(restored, Err(SnapshotError::NotWhole { .. })), "{restored:?}");
            }
        }
    }
    let temp = yard();
    take_in(temp.path());
    fs::remove_file(index_of(&temp.path().join("snapshot"))).unwrap();
    let restored = restore(&temp.path().join("snapshot"), &temp.path().join("restored"));
    assert!(matches!(restored, Err(SnapshotError::Index { .. })), "{restored:?}");
}

#[test]
fn what_is_remembered_of_the_one_before_is_bounded() {
    let temp = yard();
    take_in(temp.path());
    let index = index_of(&temp.path().join("snapshot"));
    assert!(Index::read(&index, 16 << 10).is_ok(), "the control");
    let refused = Index::read(&index, 1 << 10).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::OutOfMemory);
}

fn walk_with(bounds: SnapshotBounds) -> Result<(), SnapshotError> {
    let temp = yard();
    let from = temp.path().join("tree");
    let source = open_root(&from).unwrap();
    let target = open_root(&temp.path().join("restored")).unwrap().dir;
    let never = AtomicBool::new(false);
    let mut walk = SnapshotWalk::new(&from, Copier::new(None, None), &never);
    walk.bounds = bounds;
    walk.run(source, target, None)
}

#[test]
fn a_tree_that_is_too_large_is_told_with_the_limit() {
    let enough = SnapshotBounds { entries: 5, held: 4096, bytes: u64::MAX };
    walk_with(enough).unwrap(); // the control
    let many = walk_with(SnapshotBounds { entries: 4, ..enough }).unwrap_err();
    assert!(matches!(many, SnapshotError::Endless { limit: 4, .. }), "{many:?}");
    assert!(many.to_string().contains("more than 4 entries"), "{many}");
    let wide = walk_with(SnapshotBounds { held: 64, ..enough }).unwrap_err();
    assert!(matches!(wide, SnapshotError::TooWide { limit: 64, .. }), "{wide:?}");
}

#[test]
fn what_somebody_holds_a_lease_on_is_left_out() {
    assert!(matches!(unread("opening it")(Errno::AGAIN), Missed::LeftOut));
    assert!(matches!(unread("opening it")(Errno::IO), Missed::Failed(_)), "the control");
}

/// Past this many files with several names each name is copied: what that takes is bounded.
#[test]
fn no_more_is_copied_than_allowed() {
    let temp = yard();
    let at = temp.path();
    for name in ["a", "b", "c"] {
        fs::write(at.join("tree").join(name), vec![1; 64 << 10]).unwrap();
    }
    let begun = Begun::now(at).unwrap();
    let never = AtomicBool::new(false);
    let take_up_to = |bytes, to: &str| {
        take_with_limits(
            SnapshotLimits { cancel: &never, bytes },
            &at.join("tree"),
            &at.join(to),
            begun,
            None,
        )
    };
    take_up_to(1 << 20, "whole").unwrap();
    let large = take_up_to(100 << 10, "large").unwrap_err();
    assert!(matches!(large, SnapshotError::TooLarge { limit: 102_400, .. }), "{large:?}");
}

#[test]
fn a_tree_that_was_shut_can_be_begun_with() {
    let temp = yard();
    let at = temp.path();
    fs::write(at.join("tree/file"), "x").unwrap();
    let begun = Begun::now(at).unwrap();
    fs::set_permissions(at.join("tree"), fs::Permissions::from_mode(0o000)).unwrap();
    take(&at.join("tree"), &at.join("snapshot"), begun, None).unwrap();
    fs::create_dir(at.join("back")).unwrap();
    restore(&at.join("snapshot"), &at.join("back")).unwrap();
    let mode = fs::metadata(at.join("back")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(fs::read(at.join("back/file")).unwrap(), b"x");
}

#[test]
fn one_that_is_cancelled_ends() {
    let temp = yard();
    let at = temp.path();
    let begun = Begun::now(at).unwrap();
    let cancelled = AtomicBool::new(true);
    let taken = take_with_limits(
        SnapshotLimits { cancel: &cancelled, bytes: u64::MAX },
        &at.join("tree"),
        &at.join("snapshot"),
        begun,
        None,
    );
    assert!(matches!(taken, Err(SnapshotError::Cancelled)), "{taken:?}");
}
