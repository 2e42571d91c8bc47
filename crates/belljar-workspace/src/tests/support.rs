use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_spec::{Attributes, Backing, LayeredTree, Moment, OsText};
use belljar_tree::{Dir, FinalLink};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use crate::{Change, Changes, OpenTree, What};

pub(super) const BEGINNING: Moment = Moment { secs: 0, nanos: 0 };
pub(super) const NEVER: Moment = Moment { secs: i64::MAX, nanos: 0 };
/// Everything in it counts as touched by the run, and nothing in the real tree as new.
pub(super) const COPY: Backing = Backing::Copy { copied: BEGINNING };
pub(super) const TRUSTED: Backing = Backing::Overlay { attributes: Attributes::Trusted };
pub(super) const USER: Backing = Backing::Overlay { attributes: Attributes::User };

/// A real tree, and a directory for what was changed in it.
pub(super) struct Stage {
    pub(super) directory: tempfile::TempDir,
    pub(super) hidden: Vec<OsText>,
    pub(super) since: Moment,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// For many entries: a disk takes its time.
    pub(super) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        match tempfile::tempdir_in(memory) {
            Ok(directory) => Self::at(directory),
            Err(_) => Self::new(),
        }
    }

    fn at(directory: tempfile::TempDir) -> Self {
        for name in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory, hidden: Vec::new(), since: NEVER }
    }

    pub(super) fn lower(&self, path: &str) -> PathBuf {
        self.directory.path().join("lower").join(path)
    }

    pub(super) fn upper(&self, path: &str) -> PathBuf {
        self.directory.path().join("upper").join(path)
    }

    /// Runs a shell script in an overlay of the two, as root or as an ordinary user would.
    pub(super) fn in_overlay(&self, script: &str) -> Backing {
        let is_root = rustix::process::geteuid().is_root();
        let (flags, options, backing) = match is_root {
            true => ("-m", "redirect_dir=on,index=off,metacopy=off,xino=off", TRUSTED),
            false => ("-rm", "userxattr", USER),
        };
        let at = self.directory.path().display();
        let mount = format!(
            "mount -t overlay overlay -o \
             lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work,{options} {at}/merged \
             && cd {at}/merged || exit 99\n{script}\ntrue\n"
        );
        let done = Command::new("unshare")
            .args([flags, "--propagation", "private", "sh", "-c", &mount])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        backing
    }

    pub(super) fn tree(&self, backing: Backing) -> OpenTree {
        let (lower, upper) = (self.lower(""), self.upper(""));
        let stat = std::fs::metadata(&lower).unwrap();
        let note = LayeredTree {
            number: 0,
            source: lower.clone().into(),
            device: stat.dev(),
            inode: stat.ino(),
            target: "/workspace".into(),
            backing,
            since: self.since,
            hidden: self.hidden.clone(),
            git_part: None,
            apply: Default::default(),
        };
        OpenTree::of(note, open(&lower), open(&upper))
    }

    pub(super) fn changes(&self, backing: Backing) -> Changes {
        self.tree(backing).changes().unwrap()
    }
}

fn open(path: &Path) -> Dir {
    Dir::open(path, FinalLink::Refuse).unwrap()
}

pub(super) fn write(path: PathBuf, text: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub(super) fn whiteout(path: PathBuf) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

pub(super) fn attribute(path: PathBuf, name: &str, value: &str) {
    setxattr(path, name, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// `A a/b`, `R old -> new`, and so on.
pub(super) fn words(changes: &Changes) -> Vec<String> {
    changes.changes.iter().map(word).collect()
}

pub(super) fn word(change: &Change) -> String {
    let path = &change.path;
    match &change.what {
        What::Created => format!("A {path}"),
        What::Modified => format!("M {path}"),
        What::Mode => format!("m {path}"),
        What::Replaced => format!("T {path}"),
        What::Deleted => format!("D {path}"),
        What::Renamed { from } => format!("R {from} -> {path}"),
    }
}

/// Every entry below with its kind, mode and content.
pub(super) fn snapshot(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let content = if stat.is_symlink() {
                use std::os::unix::ffi::OsStringExt;
                std::fs::read_link(&path).unwrap().into_os_string().into_vec()
            } else if stat.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                pending.push(path.clone());
                Vec::new()
            };
            let mode = if stat.is_symlink() { 0o120777 } else { stat.permissions().mode() };
            found.push((path.strip_prefix(root).unwrap().to_owned(), mode, content));
        }
    }
    found.sort();
    found
}
