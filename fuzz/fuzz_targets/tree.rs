//! Any sequence of operations with any relative paths, in a tree full of links: nothing outside the root is
//! touched, and both resolvers do the same. Run: `cargo +nightly fuzz run tree`.
#![no_main]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_tree::{
    Bounds, CopyOwner, Dir, FinalLink, ListLimits, ListOrder, RenameMode, Resolver, Selection,
    Visit, WalkEntry, WalkOrder, copy_tree, walk,
};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{Timespec, Timestamps};

const CANARY: &str = "must not change";
const BOUNDS: Bounds = Bounds {
    depth: 32,
    entries: 2000,
    bytes: 1 << 20,
    memory: 1 << 20,
    time: belljar_tree::TimeBound::Unlimited,
};

fuzz_target!(|data: &[u8]| {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        base.join(format!("belljar-fuzz-tree-{}", std::process::id()))
    });
    let Some((first, operations)) = data.split_first() else { return };
    let resolver = if first % 2 == 0 { Resolver::Automatic } else { Resolver::Stepwise };
    let outside = place.join("outside");
    let canary = outside.join("canary");
    prepare(place, &canary);
    let before = fs::metadata(&canary).unwrap();
    let root = Dir::open(place.join("root"), FinalLink::Refuse).unwrap().with_resolver(resolver);
    run(&root, operations);
    let after = fs::metadata(&canary).unwrap();
    assert_eq!(fs::read_to_string(&canary).unwrap(), CANARY);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(
        (before.ino(), before.mode(), before.nlink(), before.mtime(), before.ctime_nsec()),
        (after.ino(), after.mode(), after.nlink(), after.mtime(), after.ctime_nsec()),
    );
    let parent = Dir::open(place, FinalLink::Refuse).unwrap();
    parent.remove_contents("root").unwrap();
    assert_eq!(fs::read_to_string(&canary).unwrap(), CANARY);
});

/// Links to the canary and its directory, of every kind, at names that the fuzzer finds soon.
fn prepare(place: &Path, canary: &Path) {
    let root = place.join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir_all(place.join("outside")).unwrap();
    if fs::read(canary).ok().as_deref() != Some(CANARY.as_bytes()) {
        fs::write(canary, CANARY).unwrap();
    }
    symlink("../outside", root.join("l")).unwrap();
    symlink("../../outside/canary", root.join("a/l")).unwrap();
    symlink(place.join("outside"), root.join("a/b/l")).unwrap();
    fs::write(root.join("f"), "content").unwrap();
}

/// Each operation is a byte for what, and two paths, each with a byte for its length.
fn run(root: &Dir, mut bytes: &[u8]) {
    let mut open: Vec<Dir> = Vec::new();
    for _ in 0..64 {
        let [code, rest @ ..] = bytes else { return };
        let (first, rest) = path(rest);
        let (second, rest) = path(rest);
        bytes = rest;
        let dir = open.last().unwrap_or(root);
        if let Some(next) = perform(root, dir, *code, first, second) {
            open.push(next);
            open.truncate(16);
        }
    }
}

/// Short paths of names that exist are likely, any bytes are possible.
fn path(bytes: &[u8]) -> (&Path, &[u8]) {
    const KNOWN: [&str; 16] = [
        "a",
        "a/b",
        "l",
        "a/l",
        "a/b/l",
        "f",
        "l/canary",
        "a/b/l/canary",
        "..",
        "../outside",
        "a/../../outside/canary",
        "/",
        "",
        ".",
        "l/new",
        "a/new",
    ];
    let Some((length, rest)) = bytes.split_first() else { return (Path::new("a"), bytes) };
    if let Some(known) = KNOWN.get(usize::from(*length)) {
        return (Path::new(known), rest);
    }
    let (path, rest) = rest.split_at(usize::from(*length).saturating_sub(16).min(rest.len()));
    (Path::new(OsStr::from_bytes(path)), rest)
}

/// Whether an operation succeeds is the property test's business.
fn perform(root: &Dir, dir: &Dir, code: u8, first: &Path, second: &Path) -> Option<Dir> {
    let time = Timespec { tv_sec: 1, tv_nsec: 1 };
    let limits = ListLimits { entries: 100, name_bytes: 10_000 };
    match code % 20 {
        0 => return dir.open_dir(first).ok(),
        1 => {
            if let Ok(content) = dir.read_file(first, 100) {
                assert_ne!(content, CANARY.as_bytes());
            }
        }
        2 => drop(dir.open_file_writable(first).map(|file| file.set_len(1))),
        3 => drop(dir.create_file(first, 0o600)),
        4 => drop(dir.create_dir(first, 0o700)),
        5 => return dir.create_dir_all(first, 0o700).ok(),
        6 => drop(dir.stat(first)),
        7 => drop(dir.read_link(first)),
        8 => drop(dir.symlink(second, first)),
        9 => drop(dir.hard_link(first, root, second)),
        10 => drop(dir.rename(first, root, second, RenameMode::Replace)),
        11 => drop(dir.rename(first, dir, second, RenameMode::NoReplace)),
        12 => drop(dir.rename(first, root, second, RenameMode::Exchange)),
        13 => drop(dir.unlink(first)),
        14 => drop(dir.remove_dir(first)),
        15 => drop(dir.remove_all(first)),
        16 => drop(dir.set_mode(first, 0o700)),
        17 => {
            drop(dir.set_times(first, &Timestamps { last_access: time, last_modification: time }));
        }
        18 => {
            drop(dir.list(first, limits, ListOrder::Sorted));
            let mut visit = |entry: &WalkEntry<'_>| {
                if let Ok(content) = entry.parent().read_file(entry.name(), 100) {
                    assert_ne!(content, CANARY.as_bytes());
                }
                Ok::<_, std::convert::Infallible>(Visit::Continue)
            };
            drop(walk(dir, BOUNDS, WalkOrder::Sorted, &mut visit));
        }
        _ => {
            if let (Ok(from), Ok(to)) = (dir.open_dir(first), root.create_dir_all(second, 0o700)) {
                drop(copy_tree(&from, &to, BOUNDS, CopyOwner::Caller, |_| Selection::Copy));
            }
        }
    }
    None
}
