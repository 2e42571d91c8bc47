//! Trees that are made to do harm, and trees that change during the copy.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_bind::snapshot::{self, Begun};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Yard, also_as_user, assert_same, is_root, mark, node, state};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

fn dig(top: &Path, depth: usize) {
    let mut at: OwnedFd = rustix::fs::open(top, DIRECTORY, Mode::empty()).unwrap();
    for level in 0..depth {
        rustix::fs::mkdirat(at.as_fd(), "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(at.as_fd(), "d", DIRECTORY, Mode::empty()).unwrap();
        let text = level.to_string();
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let file = rustix::fs::openat(at.as_fd(), "level", flags, Mode::RUSR).unwrap();
        rustix::io::write(&file, text.as_bytes()).unwrap();
    }
}

fn depth(top: &Path) -> usize {
    let mut at: OwnedFd = rustix::fs::open(top, DIRECTORY, Mode::empty()).unwrap();
    let mut depth = 0;
    while let Ok(below) = rustix::fs::openat(at.as_fd(), "d", DIRECTORY, Mode::empty()) {
        let file = rustix::fs::openat(&below, "level", OFlags::RDONLY, Mode::empty()).unwrap();
        let mut room = [0; 16];
        let length = rustix::io::read(&file, &mut room).unwrap();
        assert_eq!(room[..length], *depth.to_string().as_bytes());
        (at, depth) = (below, depth + 1);
    }
    depth
}

/// Other programs take their time with such a tree.
fn fell(top: &Path) {
    let (rest, first) = (top.join("rest"), top.join("d"));
    while first.exists() {
        let more = fs::rename(first.join("d"), &rest).is_ok();
        fs::remove_dir_all(&first).unwrap();
        if more {
            fs::rename(&rest, &first).unwrap();
        }
    }
}

/// With names that no path could hold, and few descriptors.
#[test]
fn five_thousand_levels() {
    let yard = Yard::in_memory();
    dig(&yard.tree(), 5000);
    let limit = Rlimit { current: Some(200), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let taken = yard.take(0);
    assert_eq!((taken.files, taken.left_out), (5000, 0));
    assert_eq!(depth(&yard.snapshot(0)), 5000);
    let again = yard.take(1);
    assert_eq!((again.files, again.new_files, again.changed), (5000, 0, 0));
    assert_eq!(depth(&yard.restore(1)), 5000);
    // A branch of which half is new: the path up differs from that of the snapshot before.
    fs::rename(yard.tree().join("d"), yard.temp.path().join("aside")).unwrap();
    fs::create_dir(yard.tree().join("d")).unwrap();
    fs::rename(yard.temp.path().join("aside/d"), yard.tree().join("d/d")).unwrap();
    fs::write(yard.tree().join("d/level"), "0").unwrap();
    dig(&yard.temp.path().join("aside"), 100);
    fs::rename(yard.temp.path().join("aside"), yard.tree().join("other")).unwrap();
    let branched = yard.take(2);
    assert_eq!((branched.files, branched.new_files), (5101, 102), "{branched:?}");
    for tree in [
        "tree",
        "tree/other",
        "snapshot-0",
        "snapshot-1",
        "snapshot-2",
        "snapshot-2/other",
        "restored-1",
    ] {
        fell(&yard.temp.path().join(tree));
    }
}

#[test]
fn what_denies_its_owner() {
    let yard = Yard::new();
    let tree = yard.tree();
    for mode in [0o000, 0o100, 0o200, 0o400, 0o300] {
        let directory = tree.join(format!("{mode:o}"));
        fs::create_dir_all(directory.join("sub/sub")).unwrap();
        for file in ["file", "sub/file", "sub/sub/file"] {
            fs::write(directory.join(file), file).unwrap();
            mark(&directory.join(file), "user.note", b"x");
            fs::set_permissions(directory.join(file), Permissions::from_mode(mode)).unwrap();
        }
        mark(&directory, "user.note", b"y");
        for inner in ["sub/sub", "sub", ""] {
            fs::set_permissions(directory.join(inner), Permissions::from_mode(mode)).unwrap();
        }
    }
    fs::set_permissions(&tree, Permissions::from_mode(0o000)).unwrap();
    if !is_root() {
        assert!(fs::read_dir(&tree).is_err(), "the modes deny access to others");
    }
    let taken = yard.take(0);
    assert_eq!((taken.files, taken.left_out), (15, 0));
    assert_eq!(fs::metadata(&tree).unwrap().mode() & 0o7777, 0, "as it was before");
    let then = state(&tree);
    assert_eq!(yard.take(1).changed, 0);
    assert_same(&state(&yard.snapshot(1)), &then, "the snapshot");
    // Except the root itself: the run that begins with it must be able to use it.
    let restored = yard.restore(1);
    assert_eq!(fs::metadata(&restored).unwrap().mode() & 0o7777, 0o700);
    fs::set_permissions(&restored, Permissions::from_mode(0o000)).unwrap();
    assert_same(&state(&restored), &then, "restored");
    assert_same(&state(&tree), &then, "the tree itself");
}

#[test]
fn what_denies_its_owner_as_an_ordinary_user() {
    also_as_user("hostile::what_denies_its_owner");
}

#[test]
fn a_terabyte_of_nothing() {
    use std::os::unix::fs::FileExt;
    let yard = Yard::new();
    let file = File::create(yard.tree().join("hole")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"middle", 1 << 39).unwrap();
    drop(file);
    let begun = Instant::now();
    yard.take(0);
    let restored = File::open(yard.restore(0).join("hole")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let meta = restored.metadata().unwrap();
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() < 1000, "{}", meta.blocks());
    let mut room = [0; 6];
    restored.read_exact_at(&mut room, 1 << 39).unwrap();
    assert_eq!(&room, b"middle");
}

/// Nobody ever opens the other end of the FIFO.
#[test]
fn nothing_special_is_opened() {
    let yard = Yard::new();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        node(&yard.tree().join(name), kind);
    }
    yard.take(0);
    assert_same(&state(&yard.restore(0)), &state(&yard.tree()), "restored");
}

#[test]
fn a_device_is_left_out() {
    if !is_root() {
        return; // no other user can make one
    }
    let yard = Yard::new();
    let null = rustix::fs::makedev(1, 3);
    let path = yard.tree().join("null");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, Mode::RWXU, null)
        .unwrap();
    node(&yard.tree().join("removed"), FileType::CharacterDevice);
    assert_eq!(yard.take(0).left_out, 1);
    assert!(!yard.snapshot(0).join("null").exists());
    assert!(yard.snapshot(0).join("removed").symlink_metadata().is_ok(), "the control");
}

/// Runs something again and again while something else is done.
fn meanwhile<T>(again: impl Fn() + Sync, done: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                again();
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(done));
        stop.store(true, Ordering::Relaxed);
        done.unwrap()
    })
}

#[test]
fn a_file_that_grows_while_it_is_copied() {
    let yard = Yard::new();
    let path = yard.tree().join("grows");
    const MIN_SIZE: usize = 64 << 20;
    fs::write(&path, vec![b'x'; MIN_SIZE]).unwrap();
    let mut torn = 0;
    let grow = || {
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"x").unwrap();
    };
    meanwhile(grow, || {
        for number in 0..5 {
            let taken = yard.take(number);
            torn += taken.unsettled;
            let copy = fs::read(yard.snapshot(number).join("grows")).unwrap();
            assert!(copy.len() >= MIN_SIZE && copy.iter().all(|byte| *byte == b'x'));
        }
    });
    yard.take(5);
    assert!(fs::read(yard.snapshot(5).join("grows")).unwrap() == fs::read(&path).unwrap());
    assert!(torn > 0, "it was written to all the while, and that is reported");
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let yard = Yard::in_memory();
    let (outside, aside) = (yard.temp.path().join("outside"), yard.temp.path().join("aside"));
    fs::create_dir_all(outside.join("below")).unwrap();
    for name in ["secret", "below/secret"] {
        fs::write(outside.join(name), "of the host").unwrap();
    }
    let directory = yard.tree().join("directory");
    fs::create_dir_all(directory.join("below")).unwrap();
    for name in ["plain", "below/plain"] {
        fs::write(directory.join(name), "x").unwrap();
    }
    // Between listing the directory and entering it.
    for number in 0..60 {
        fs::write(yard.tree().join(format!("file-{number}")), "x").unwrap();
    }
    let swap = || {
        fs::rename(&directory, &aside).unwrap();
        symlink(&outside, &directory).unwrap();
        std::thread::yield_now();
        fs::remove_file(&directory).unwrap();
        fs::rename(&aside, &directory).unwrap();
    };
    let taken = |number| {
        let to = yard.snapshot(number);
        let begun = Begun::now(yard.temp.path()).unwrap();
        snapshot::take(&yard.tree(), &to, begun, None).unwrap();
        let there = state(&to);
        assert!(there.keys().all(|path| !path.ends_with("secret")), "{:?}", there.keys());
        fs::remove_dir_all(to).unwrap();
        ["directory/plain", "directory/below/plain"]
            .iter()
            .all(|name| there.contains_key(Path::new(name)))
    };
    let torn = meanwhile(swap, || (0..150).filter(|number| !taken(*number)).count());
    assert!(torn > 0, "it was exchanged while it was copied");
    assert!(taken(150), "and is whole when no process does that");
}

/// Deeper than descriptors are held open, so that the walk goes up through `..`.
#[test]
fn a_directory_that_is_moved_while_it_is_copied_leads_nowhere() {
    let yard = Yard::in_memory();
    fs::create_dir(yard.tree().join("elsewhere")).unwrap();
    let outside = yard.temp.path().join("outside");
    // Under the names that are looked up after going up.
    for name in ["a", "z"] {
        fs::create_dir_all(outside.join(name)).unwrap();
        fs::write(outside.join(name).join("secret"), "of the host").unwrap();
    }
    let deep = |levels: usize| (0..levels).fold(yard.tree(), |path, _| path.join("d"));
    // In whatever order a directory is listed, something is left to do after going up.
    for level in 0..150 {
        for name in ["a", "d", "z"] {
            fs::create_dir(deep(level).join(name)).unwrap();
        }
        for name in ["a/file", "z/file"] {
            fs::write(deep(level).join(name), "x").unwrap();
        }
    }
    let (from, to) = (deep(60), outside.join("moved"));
    let swap = || {
        fs::rename(&from, &to).unwrap();
        std::thread::sleep(Duration::from_micros(300));
        fs::rename(&to, &from).unwrap();
        std::thread::sleep(Duration::from_micros(300));
    };
    let left_out = std::cell::Cell::new(0);
    meanwhile(swap, || {
        for number in (0..400).take_while(|number| *number < 60 || left_out.get() == 0) {
            let copy = yard.snapshot(number);
            let begun = Begun::now(yard.temp.path()).unwrap();
            let taken = snapshot::take(&yard.tree(), &copy, begun, None).unwrap();
            left_out.set(left_out.get() + taken.left_out);
            assert!(state(&copy).keys().all(|path| !path.ends_with("secret")));
            fs::remove_dir_all(copy).unwrap();
        }
    });
    assert!(left_out.get() > 0, "it was moved at least once while it was copied");
}
