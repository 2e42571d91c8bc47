//! Trees for tests, and their observable state.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_bind::snapshot::{self, Begun, Previous, SnapshotSummary};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

/// Everything that a copy has to have in common with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) modified: (i64, i64),
    pub(crate) content: Vec<u8>,
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
    /// The first path with the same inode.
    pub(crate) same_as: PathBuf,
}

impl About {
    pub(crate) fn is_empty_directory(&self) -> bool {
        self.kind == 'd' && self.content.is_empty()
    }

    /// But for times and other names.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        let content = |it: &Self| if it.kind == 'd' { Vec::new() } else { it.content.clone() };
        (self.kind, self.mode, self.owner, content(self), &self.attributes)
            == (other.kind, other.mode, other.owner, content(other), &other.attributes)
    }
}

pub(crate) type State = BTreeMap<PathBuf, About>;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Every entry, the root included. A mode that denies access is restored.
pub(crate) fn state(root: &Path) -> State {
    let mut found = State::new();
    let mut inodes = BTreeMap::new();
    look(root, root, &mut found, &mut inodes);
    // Which name of a file is the first must not hang on the order of a listing.
    let mut groups: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for (path, about) in &mut found {
        if !matches!(about.kind, 'd' | 'w') {
            about.same_as = groups.entry(inodes[path]).or_insert_with(|| path.clone()).clone();
        }
    }
    found
}

fn look(root: &Path, path: &Path, found: &mut State, inodes: &mut BTreeMap<PathBuf, u64>) {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let relative = path.strip_prefix(root).unwrap().to_owned();
    let closed = !is_root() && !kind.is_symlink() && meta.mode() & 0o700 != 0o700;
    let opened = closed && (kind.is_dir() || kind.is_file());
    if opened {
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }
    let (letter, content) = match () {
        () if kind.is_dir() => {
            let below = below(path);
            below.iter().for_each(|entry| look(root, entry, found, inodes));
            ('d', vec![b'.'; below.len().min(1)])
        }
        () if kind.is_file() => ('f', fs::read(path).unwrap()),
        () if kind.is_symlink() => ('l', fs::read_link(path).unwrap().into_os_string().into_vec()),
        () if kind.is_fifo() => ('p', Vec::new()),
        () if kind.is_socket() => ('s', Vec::new()),
        () => ('w', Vec::new()),
    };
    let attributes = attributes_of(path);
    if opened {
        fs::set_permissions(path, meta.permissions()).unwrap();
    }
    let about = About {
        kind: letter,
        mode: if letter == 'l' { 0 } else { meta.mode() & 0o7777 },
        owner: (meta.uid(), meta.gid()),
        modified: (meta.mtime(), meta.mtime_nsec()),
        content,
        attributes,
        same_as: relative.clone(),
    };
    inodes.insert(relative.clone(), meta.ino());
    found.insert(relative, about);
}

fn below(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn attributes_of(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut found: Vec<_> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| OsString::from_vec(name.to_vec()).into_string().unwrap())
        .filter(|name| !name.starts_with("security."))
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..]).unwrap();
            (name, value[..length].to_vec())
        })
        .collect();
    found.sort();
    found
}

pub(crate) fn mark(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// The mark that overlayfs itself would make for this caller.
pub(crate) fn opaque() -> &'static str {
    if is_root() { "trusted.overlay.opaque" } else { "user.overlay.opaque" }
}

pub(crate) fn node(path: &Path, kind: FileType) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), 0).unwrap();
}

/// A place for a tree and for snapshots of it.
pub(crate) struct Yard {
    pub(crate) temp: tempfile::TempDir,
}

impl Yard {
    pub(crate) fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// For many entries: a disk takes its time.
    pub(crate) fn in_memory() -> Self {
        tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::new(), Self::at)
    }

    fn at(temp: tempfile::TempDir) -> Self {
        fs::create_dir(temp.path().join("tree")).unwrap();
        Self { temp }
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    pub(crate) fn snapshot(&self, number: usize) -> PathBuf {
        self.temp.path().join(format!("snapshot-{number}"))
    }

    /// Number 0 has nothing before it.
    pub(crate) fn take(&self, number: usize) -> SnapshotSummary {
        let previous = number.checked_sub(1).map(|before| self.snapshot(before));
        let previous = previous.map(|before| Previous::open(&before).unwrap());
        let begun = Begun::now(self.temp.path()).unwrap();
        snapshot::take(&self.tree(), &self.snapshot(number), begun, previous).unwrap()
    }

    pub(crate) fn restore(&self, number: usize) -> PathBuf {
        let to = self.temp.path().join(format!("restored-{number}"));
        fs::create_dir(&to).unwrap();
        snapshot::restore(&self.snapshot(number), &to).unwrap();
        to
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        // What denies its owner would stay behind.
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(self.temp.path()).output();
    }
}

pub(crate) fn assert_same(is: &State, was: &State, what: &str) {
    let keys: std::collections::BTreeSet<_> = is.keys().chain(was.keys()).collect();
    for key in keys {
        assert_eq!(is.get(key), was.get(key), "{what}: {}", key.display());
    }
}

/// Runs a test of this file once more as an ordinary user, where this is root.
pub(crate) fn also_as_user(test: &str) {
    if !is_root() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    // Where the tests were built may be closed to others.
    let copy = temp.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", temp.path())
        .current_dir(temp.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// Numbers that look random, the same each time.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        match of.len() {
            0 => None,
            length => of.get(self.next(length as u64) as usize),
        }
    }
}
