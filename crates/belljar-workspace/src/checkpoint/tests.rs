#![allow(clippy::unwrap_used, reason = "a test")]

mod killed;
mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::Moment;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use self::support::{Stage, in_mounts, listing};
use super::*;

const EVER: Moment = Moment { secs: 0, nanos: 0 };

#[test]
fn what_was_changed_is_kept_counted_and_comes_back() {
    let stage = Stage::new(100);
    stage.write_upper("one", "1");
    mknodat(CWD, stage.upper("file-7"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    symlink("/etc/passwd", stage.upper("link")).unwrap();
    fs::write(stage.home().join("session"), "of the agent").unwrap();
    let first = take(&stage.subject(), 1, EVER).unwrap();
    assert_eq!((first.changed, first.report.left_out), (3, 0), "the home is not counted");
    assert_eq!((first.report.files, first.report.new_files, first.report.bytes), (2, 2, 13));
    stage.tick();
    let same = take(&stage.subject(), 2, EVER).unwrap();
    assert_eq!((same.changed, same.report.files), (0, 2));
    stage.write_upper("two", "22");
    let third = take(&stage.subject(), 3, EVER).unwrap();
    assert_eq!((third.changed, third.report.files), (1, 3));
    assert_eq!(names(&stage), ["000001", "000002", "000003"]);

    let home = stage.temp.path().join("another-home");
    fs::create_dir(&home).unwrap();
    restore_home(&path(&stage.run(), 1), &home).unwrap();
    assert_eq!(fs::read_to_string(home.join("session")).unwrap(), "of the agent");
    let data = |iteration| path(&stage.run(), iteration).join(SEED).join("0").join(DATA);
    assert_eq!(listing(&data(3)), listing(&stage.upper("")));
    assert!(!data(1).join("two").exists());
    let note = fs::read(path(&stage.run(), 3).join(SEED).join("0").join(NOTE)).unwrap();
    assert_eq!(serde_json::from_slice::<LayeredTree>(&note).unwrap(), stage.subject().trees[0]);
}

fn names(stage: &Stage) -> Vec<String> {
    let entries = fs::read_dir(stage.run().join(CHECKPOINTS)).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The limit is of what lies on disk, in the home and in the trees together: a hole takes nothing.
#[test]
fn no_checkpoint_copies_more_than_the_limit() {
    let stage = Stage::new(0);
    let hole = fs::File::create(stage.run().join(HOME).join("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    fs::write(stage.run().join(HOME).join("data"), vec![1; 200 << 10]).unwrap();
    stage.write_upper("data", &"x".repeat(200 << 10));
    stage.tick();
    let with = |most| Subject { most_bytes: Some(most), ..stage.subject() };
    take(&with(1 << 20), 1, EVER).unwrap();
    fs::write(stage.run().join(HOME).join("data"), vec![2; 70 << 10]).unwrap();
    stage.write_upper("data", &"y".repeat(70 << 10));
    let error = take(&with(100 << 10), 2, EVER).unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.is_none_or(|text| text.contains("is larger than")), "{error:?}");
    assert_eq!(names(&stage), ["000001"], "nothing is left of it");
}

#[test]
fn the_newest_stay_and_share_what_they_have_in_common() {
    let stage = Stage::new(0);
    stage.write_upper("same", "content");
    stage.tick();
    for iteration in 1..=5 {
        stage.write_upper("new", &iteration.to_string());
        take(&stage.subject(), iteration, EVER).unwrap();
    }
    prune(&stage.run(), 2);
    assert_eq!(names(&stage), ["000004", "000005"]);
    let file =
        |iteration, name: &str| path(&stage.run(), iteration).join("upper/0/data").join(name);
    assert_eq!(fs::metadata(file(4, "same")).unwrap().nlink(), 2);
    assert_eq!(fs::read_to_string(file(4, "new")).unwrap(), "4");
    prune(&stage.run(), 10);
    assert_eq!(names(&stage).len(), 2);
}

#[test]
fn the_oldest_make_room_and_the_newest_stays() {
    let stage = Stage::new(0);
    let subject = |most| Subject { most_bytes: most, ..stage.subject() };
    let large = |byte| fs::write(stage.upper("large"), vec![byte; 256 << 10]).unwrap();
    for iteration in 1..=4 {
        large(iteration as u8);
        take(&subject(None), iteration, EVER).unwrap();
    }
    assert_eq!(names(&stage).len(), 4, "the control");
    large(5);
    // A file that was written in the tick of the clock in which a checkpoint began is copied again by the next.
    stage.tick();
    take(&subject(Some(900 << 10)), 5, EVER).unwrap();
    assert_eq!(names(&stage), ["000003", "000004", "000005"], "and room for what comes");
    take(&subject(Some(1)), 6, EVER).unwrap();
    assert_eq!(names(&stage), ["000006"]);
}

#[test]
fn what_is_being_read_stays_and_what_is_gone_cannot_be_read() {
    let stage = Stage::new(0);
    stage.write_upper("one", "1");
    for iteration in 1..=3 {
        take(&stage.subject(), iteration, EVER).unwrap();
    }
    let first = path(&stage.run(), 1);
    let pinned = pin(&first).unwrap();
    prune(&stage.run(), 1);
    assert_eq!(names(&stage), ["000001", "000003"]);
    drop(pinned);
    prune(&stage.run(), 1);
    assert_eq!(names(&stage), ["000003"]);
    assert!(matches!(pin(&first), Err(CheckpointError::Gone { .. })));
}

#[test]
fn half_a_checkpoint_is_nothing_to_begin_with() {
    let stage = Stage::new(0);
    for name in ["a", "b"] {
        fs::write(stage.home().join(name), name).unwrap();
    }
    take(&stage.subject(), 1, EVER).unwrap();
    let restored = |to: &str| {
        let home = stage.temp.path().join(to);
        fs::create_dir(&home).unwrap();
        restore_home(&path(&stage.run(), 1), &home)
    };
    restored("whole").unwrap();
    fs::remove_file(path(&stage.run(), 1).join(HOME).join("b")).unwrap();
    let failed = belljar_spec::text::error_chain(&restored("half").unwrap_err());
    assert!(failed.contains("is incomplete"), "{failed}");
}

#[test]
fn one_that_is_given_up_leaves_nothing() {
    let stage = Stage::new(0);
    stage.write_upper("one", "1");
    take(&stage.subject(), 1, EVER).unwrap();
    let subject = stage.subject();
    subject.cancel.store(true, Ordering::Relaxed);
    let given_up = take(&subject, 2, EVER);
    assert!(matches!(given_up, Err(CheckpointError::Cancelled { .. })), "{given_up:?}");
    assert_eq!(names(&stage), ["000001"]);
}

#[test]
fn the_first_of_a_run_that_began_with_another_is_compared_with_that() {
    let older = Stage::new(10);
    older.write_upper("one", "1");
    take(&older.subject(), 4, EVER).unwrap();
    let newer = Stage::new(10);
    newer.write_upper("one", "1");
    let born = Some(path(&older.run(), 4));
    let subject = Subject { born, ..newer.subject() };
    assert_eq!(take(&subject, 5, EVER).unwrap().changed, 0);
    newer.write_upper("one", "2");
    assert_eq!(take(&subject, 6, EVER).unwrap().changed, 1);
}

#[test]
fn what_a_crash_left_goes_and_what_is_written_to_directly_is_counted() {
    let stage = Stage::new(0);
    for name in ["000002.new", "000001.old"] {
        fs::create_dir_all(stage.run().join(CHECKPOINTS).join(name).join("x/y")).unwrap();
    }
    let tree = stage.temp.path().join("written");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let subject = Subject { trees: Vec::new(), written: vec![tree], ..stage.subject() };
    assert_eq!(take(&subject, 2, EVER).unwrap().changed, 2);
    assert_eq!(names(&stage), ["000002"]);
    let later = Moment { secs: i64::MAX, nanos: 0 };
    assert_eq!(take(&subject, 3, later).unwrap().changed, 0);
}

/// The baseline is whole with each checkpoint, and goes along.
#[test]
fn what_the_run_saw_is_taken_down_and_carried_on() {
    let stage = Stage::new(3);
    stage.write_upper("file-1", "changed");
    take(&stage.subject(), 1, EVER).unwrap();
    let seen = |run: &Path, number: u32| {
        fs::read_to_string(run.join("base").join(number.to_string()).join("index.json")).unwrap()
    };
    assert!(seen(&stage.run(), 0).contains("file-1"));
    let copy = |run: &Path, number: &str| fs::read(run.join("base").join(number).join("0"));
    assert_eq!(copy(&stage.run(), "0").unwrap(), b"1", "the text that it saw");
    stage.write_layers(0);
    let next = Stage::new(0);
    next.write_layers(2);
    carry_base(&stage.run(), &next.run()).unwrap();
    assert_eq!(seen(&next.run(), 2), seen(&stage.run(), 0));
    assert_eq!(copy(&next.run(), "2").unwrap(), b"1");
}

/// Run by the test below, on a file system that is soon full.
#[test]
#[ignore = "needs a small file system"]
fn on_a_full_disk() {
    let at = std::env::var_os("BELLJAR_TEST_TREE").unwrap();
    let stage = Stage::at(tempfile::tempdir_in(at).unwrap(), 0);
    stage.write_upper("small", "x");
    take(&stage.subject(), 1, EVER).unwrap(); // the control
    let before = listing(&stage.upper(""));
    fs::write(stage.upper("large"), vec![7; 1200 << 10]).unwrap();
    let failed = take(&stage.subject(), 2, EVER).unwrap_err();
    assert!(matches!(failed, CheckpointError::Snapshot { .. }), "{failed:?}");
    assert!(
        belljar_spec::text::error_chain(&failed).contains("large"),
        "{}",
        belljar_spec::text::error_chain(&failed)
    );
    assert_eq!(names(&stage), ["000001"], "nothing is left of it");
    fs::remove_file(stage.upper("large")).unwrap();
    assert_eq!(listing(&stage.upper("")), before);
    take(&stage.subject(), 2, EVER).unwrap();
}

#[test]
fn a_full_disk_leaves_nothing() {
    in_mounts("mount -t tmpfs -o size=2m tmpfs \"$1\"", "checkpoint::tests::on_a_full_disk");
}

/// Printed, for a person to look at.
#[test]
#[allow(clippy::print_stderr, reason = "a test")]
fn what_a_checkpoint_costs() {
    let temp = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for files in [1000, 100_000] {
        let stage = Stage::at(temp(), files);
        for number in 0..100 {
            stage.write_upper(&format!("file-{number}"), "changed by the run");
        }
        let mut took = Vec::new();
        for iteration in 1..=3 {
            let begun = Instant::now();
            let taken = take(&stage.subject(), iteration, EVER).unwrap();
            took.push(begun.elapsed());
            assert_eq!(taken.report.files, 100);
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("tree of {files} files, 100 changed: checkpoints took {took:?}");
    }
}
