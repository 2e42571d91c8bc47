//! Layers that are made to harm whoever looks at them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with};

use super::support::*;
use crate::bounds::Room;
use crate::{HowFar, Kind};

/// A directory and a file change places with links to the outside all the time.
#[test]
fn nothing_is_read_through_a_link_that_comes_and_goes() {
    let stage = Stage::new();
    let outside = stage.directory.path().join("outside");
    write(outside.join("sentinel"), "secret");
    write(stage.lower("d/kept"), "1");
    for name in ["d", "t"] {
        write(stage.upper(name).join("inside"), "of the run");
    }
    std::fs::remove_dir_all(stage.upper("t")).unwrap();
    symlink(&outside, stage.upper("t")).unwrap();
    write(stage.upper("f"), "of the run");
    symlink(outside.join("sentinel"), stage.upper("g")).unwrap();
    let stop = AtomicBool::new(false);
    let exchange = |one: &Path, other: &Path| {
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    };
    let (d, t, f, g) = (stage.upper("d"), stage.upper("t"), stage.upper("f"), stage.upper("g"));
    let naive = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                exchange(&d, &t);
                exchange(&f, &g);
            }
        });
        let mut naive = 0;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for backing in [USER, COPY] {
                let tree = stage.tree(backing);
                for change in tree.changes().unwrap().changes {
                    assert!(!change.path.to_string().contains("sentinel"), "{}", change.path);
                    if let Ok(mut file) = tree.open_after(&change) {
                        let mut text = String::new();
                        file.read_to_string(&mut text).unwrap();
                        assert_ne!(text, "secret");
                    }
                }
            }
            naive += usize::from(std::fs::read(&f).is_ok_and(|text| text == b"secret"));
            naive += usize::from(d.join("sentinel").exists());
        }
        stop.store(true, Ordering::Relaxed);
        naive
    });
    assert!(naive > 0, "whoever follows links is led out: the control");
}

#[test]
fn a_sparse_file_costs_nothing() {
    let stage = Stage::in_memory();
    write(stage.lower("same"), "");
    write(stage.lower("other"), "");
    let mut size = i64::MAX as u64;
    let at = |path| File::options().write(true).create(true).truncate(false).open(path).unwrap();
    let lower = at(stage.lower("same"));
    while lower.set_len(size).is_err() {
        size /= 2; // as large as the file system has it
    }
    assert!(size >= 1 << 40, "{size}");
    for path in ["same", "other", "new"] {
        at(stage.upper(path)).set_len(size).unwrap();
    }
    at(stage.lower("other")).set_len(size).unwrap();
    at(stage.upper("other")).write_all_at(b"x", 1 << 35).unwrap();
    let begun = Instant::now();
    let changes = stage.changes(USER);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(words(&changes), ["A new", "M other"]);
    assert!(changes.changes.iter().all(|change| change.withheld.is_some()));
    let tree = stage.tree(USER);
    let patch = tree.patch(&changes.changes[0]).unwrap();
    assert!(String::from_utf8(patch).unwrap().contains("Binary files"));
}

/// Directories in one another, deeper than any path can tell.
fn make_chain(root: &Path, name: &str, levels: usize) {
    std::fs::create_dir_all(root).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut here = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&here, name, Mode::RWXU).unwrap();
        here = openat(&here, name, flags, Mode::empty()).unwrap();
    }
}

#[test]
fn a_tree_without_a_ground_ends_where_nobody_works_any_more() {
    let stage = Stage::in_memory();
    for root in [stage.upper(""), stage.lower("below")] {
        make_chain(&root, &"d".repeat(5), 10_000);
    }
    whiteout(stage.upper("below"));
    let begun = Instant::now();
    let changes = stage.changes(USER);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let deepest = changes.changes.iter().map(|change| change.path.as_path().components().count());
    assert_eq!(deepest.max(), Some(512));
    let held: Vec<_> = changes.changes.iter().filter(|change| change.withheld.is_some()).collect();
    let ends = held.iter().filter(|change| change.path.as_path().components().count() == 512);
    assert_eq!(ends.count(), 2);
    assert!(held.iter().all(|change| change.withheld.as_ref().unwrap().how_far == HowFar::Always));
    for name in ["upper", "lower"] {
        belljar_tree::remove_all(stage.directory.path().join(name)).unwrap();
    }
}

/// What the run saw is noted while it runs, and its paths are held in memory: 480 levels of long names in a few
/// hundred directories would be gigabytes.
#[test]
fn long_names_in_deep_directories_do_not_fill_memory() {
    let stage = Stage::in_memory();
    for chain in 0..4 {
        make_chain(&stage.upper(&format!("{chain}")), &"n".repeat(250), 480);
    }
    let tree = stage.tree(USER);
    let stop = AtomicBool::new(false);
    let paths = crate::changed_paths::paths_of(&tree, &stop);
    assert_eq!(paths.len(), 4 * (1 + 16), "the last of each chain is named, and not looked into");
    assert!(paths.iter().all(|path| path.as_bytes().len() < 4096));
    let changes = tree.changes().unwrap();
    assert_eq!(changes.changes.len(), paths.len());
    assert!(!changes.cut);
    drop(tree);
    belljar_tree::remove_all(stage.directory.path().join("upper")).unwrap();
}

#[test]
fn a_list_of_changes_ends_where_its_room_does() {
    let stage = Stage::in_memory();
    for number in 0..100 {
        write(stage.upper(&format!("{}/{number:050}", number % 10)), "1");
    }
    let within = |bytes| {
        let changes = stage.tree(USER).changes_within(1000, Room::of(bytes)).unwrap();
        (changes.changes.len(), changes.cut)
    };
    assert_eq!(within(100_000), (110, false), "the control");
    let (listed, cut) = within(10_000);
    assert!(cut && (20..60).contains(&listed), "{listed}");
}

/// What a link leads to is as long as a path.
#[test]
fn long_targets_of_links_take_room_too() {
    let stage = Stage::in_memory();
    for number in 0..100 {
        symlink("t".repeat(4000), stage.upper(&format!("{number}"))).unwrap();
    }
    let within = |bytes| stage.tree(USER).changes_within(1000, Room::of(bytes)).unwrap();
    assert!(!within(500_000).cut, "the control");
    let cut = within(100_000);
    assert!(cut.cut && cut.changes.len() < 30, "{}", cut.changes.len());
}

#[test]
fn nobody_waits_for_a_fifo() {
    let stage = Stage::new();
    write(stage.lower("f"), "1");
    for path in ["f", "n"] {
        rustix::fs::mknodat(CWD, stage.upper(path), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
    }
    let tree = stage.tree(USER);
    let changes = tree.changes().unwrap();
    assert_eq!(words(&changes), ["T f", "A n"]);
    for change in &changes.changes {
        assert_eq!(change.after.as_ref().unwrap().kind, Kind::Fifo);
        assert!(tree.open_after(change).is_err());
        tree.patch(change).unwrap();
    }
}

#[test]
fn names_that_are_more_than_names() {
    let stage = Stage::new();
    let names: [&[u8]; 6] = [
        b"-rf",
        b"a\n{\"event\":\"x\"}",
        b"\x1b[2J",
        b"\xff\xfe",
        b" ",
        "\u{202e}txt.exe".as_bytes(),
    ];
    for name in names {
        write(stage.upper("").join(OsStr::from_bytes(name)), "1");
    }
    let tree = stage.tree(USER);
    let changes = tree.changes().unwrap();
    assert_eq!(changes.changes.len(), names.len());
    for change in &changes.changes {
        assert!(names.contains(&change.path.as_bytes()));
        assert!(!change.path.to_string().chars().any(char::is_control), "{}", change.path);
        let patch = tree.patch(change).unwrap();
        let head = patch.split(|byte| *byte == b'@').next().unwrap();
        let bad = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\t');
        assert!(!head.iter().any(bad), "{}", String::from_utf8_lossy(head));
        assert_eq!(head.iter().filter(|byte| **byte == b'\n').count(), 4, "a line is a line");
    }
}

#[test]
fn many_entries_take_a_moment_only() {
    let stage = Stage::in_memory();
    for number in 0..100_000 {
        File::create(stage.upper(&format!("{number}"))).unwrap();
    }
    let begun = Instant::now();
    let changes = stage.changes(USER);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(changes.changes.len(), 100_000);
    assert!(!changes.cut);
}

#[test]
fn no_more_changes_are_listed_than_anybody_looks_at() {
    let stage = Stage::in_memory();
    for number in 0..1000 {
        write(stage.upper(&format!("{}/{number}", number % 10)), "1");
        write(stage.lower(&format!("gone/{number}")), "1");
    }
    whiteout(stage.upper("gone"));
    let up_to = |most| {
        let changes = stage.tree(USER).changes_up_to(most).unwrap();
        (changes.changes.len(), changes.cut)
    };
    assert_eq!(up_to(500), (500, true));
    assert!(up_to(1500).1);
    assert_eq!(
        up_to(5000),
        (10 + 1 + 1000, false),
        "the same content under another name is one change"
    );
}
