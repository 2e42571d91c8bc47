//! The trees that a run could ever write. A link in one of them may have been planted, so it is never
//! followed when a later run is given something; a file in one that decides about a run needs trust.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use belljar_bind::resolve::identity;
use belljar_spec::{DirectoryIdentity, WritableTree};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::home::Home;

const FILE: &str = "writable-trees";
const DRAFT: &str = "writable-trees.new";
const LOCK: &str = "writable-trees.lock";
const VERSION: u32 = 2;
/// Keeps these hashes apart from every other use of BLAKE3 here.
const CONTEXT: &str = "belljar 2026 list of trees that a run could write";

#[derive(Serialize, Deserialize)]
struct StoredTrees {
    v: u32,
    trees: Vec<WritableTree>,
    /// Over the trees as they are written: a list that lost a part would trust what it should not.
    checksum: String,
}

fn checksum(trees: &[WritableTree]) -> io::Result<String> {
    let text = serde_json::to_vec(trees)?;
    Ok(blake3::Hasher::new_derive_key(CONTEXT).update(&text).finalize().to_hex().to_string())
}

/// All of them. A damaged list is an error, and never an empty list.
pub fn known(home: &Home) -> io::Result<Vec<WritableTree>> {
    read(&home.path().join(FILE))
}

fn read(path: &Path) -> io::Result<Vec<WritableTree>> {
    let list = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list?,
    };
    let damaged = |why: String| {
        io::Error::other(format!(
            "{} is damaged ({why}): it lists the trees that runs could write; look at what runs left in \
             yours, then remove it",
            path.display()
        ))
    };
    if list.starts_with(b"/") {
        return by_path(&list).ok_or_else(|| damaged("its last entry has no end".into()));
    }
    let stored: StoredTrees =
        serde_json::from_slice(&list).map_err(|error| damaged(error.to_string()))?;
    if stored.v != VERSION {
        return Err(damaged(format!("version {}", stored.v)));
    }
    if stored.checksum != checksum(&stored.trees)? {
        return Err(damaged("its checksum is another".into()));
    }
    Ok(stored.trees)
}

/// What the first version wrote: paths, each ended by a NUL byte.
fn by_path(list: &[u8]) -> Option<Vec<WritableTree>> {
    let list = list.strip_suffix(&[0])?;
    let paths = list.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    let paths = paths.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
    Some(
        paths
            .map(|path| WritableTree { identity: identity_of(&path), path: path.into() })
            .collect(),
    )
}

/// Nothing where it cannot be asked; the path counts all the same.
fn identity_of(path: &Path) -> Option<DirectoryIdentity> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    identity(opened).ok()
}

/// Whether a directory, or one above it, is the other, whatever they are called.
pub fn lies_in(path: &Path, above: &Path) -> bool {
    let Some(wanted) = identity_of(above) else { return false };
    path.ancestors().filter_map(identity_of).any(|found| found.is_same(&wanted))
}

/// Before the run that can write there starts.
pub fn remember(home: &Home, known: &[WritableTree], trees: &[PathBuf]) -> io::Result<()> {
    let trees: Vec<WritableTree> = trees
        .iter()
        .map(|path| WritableTree { identity: identity_of(path), path: path.as_path().into() })
        .filter(|tree| !known.contains(tree))
        .collect();
    if trees.is_empty() {
        return Ok(());
    }
    change(home, |stored| {
        for tree in trees {
            if !stored.contains(&tree) {
                stored.push(tree);
            }
        }
    })
}

/// The same for what a run's work is brought to by the operator: an applied tree, a file that was copied out.
pub fn note(home: &Home, paths: &[PathBuf]) -> io::Result<()> {
    let real: Vec<PathBuf> =
        paths.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    remember(home, &known(home)?, &real)
}

/// What was asked to be cleared, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// So many entries are gone.
    Trees(usize),
    NotKnown,
    /// It lies in this tree, which was not named.
    Within(PathBuf),
}

/// Forgets that a run could write the tree, and trees in it. `check` is asked while nothing else can change the
/// list.
pub fn clear<E: From<io::Error>>(
    home: &Home,
    tree: &Path,
    check: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<Cleared, E> {
    let real = std::fs::canonicalize(tree)?;
    let found = identity_of(&real);
    let lock = lock(home)?;
    check(&real)?;
    let mut stored = known(home)?;
    let is_it = |tree: &WritableTree| {
        tree.as_path().starts_with(&real) || tree.is_at(&real, found.as_ref())
    };
    let above = real.ancestors().skip(1).find(|above| {
        let identity = identity_of(above);
        stored.iter().any(|tree| tree.is_at(above, identity.as_ref()))
    });
    if let Some(above) = above {
        return Ok(Cleared::Within(above.to_owned()));
    }
    let before = stored.len();
    stored.retain(|tree| !is_it(tree));
    if stored.len() == before {
        return Ok(Cleared::NotKnown);
    }
    save(home, &stored)?;
    drop(lock);
    Ok(Cleared::Trees(before - stored.len()))
}

/// One change at a time, or two launchers would lose one.
fn change(home: &Home, edit: impl FnOnce(&mut Vec<WritableTree>)) -> io::Result<()> {
    let _lock = lock(home)?;
    let mut stored = known(home)?;
    edit(&mut stored);
    save(home, &stored)
}

/// Removes what a launcher that was killed left half written.
pub fn remove_draft(home: &Home) -> io::Result<()> {
    let draft = home.path().join(DRAFT);
    if std::fs::symlink_metadata(&draft).is_err() {
        return Ok(());
    }
    let _lock = lock(home)?; // a process that is writing it now has finished by then
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn lock(home: &Home) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(home.path().join(LOCK), flags, Mode::from_raw_mode(0o600))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(File::from(lock))
}

/// Whole or not at all, and on disk before a run can write there: a list that a power failure cut short would
/// believe links of that run.
fn save(home: &Home, trees: &[WritableTree]) -> io::Result<()> {
    let stored = StoredTrees { v: VERSION, checksum: checksum(trees)?, trees: trees.to_vec() };
    let path = home.path().join(FILE);
    let draft = home.path().join(DRAFT);
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&draft, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(&serde_json::to_vec(&stored)?)?;
    file.sync_data()?;
    std::fs::rename(&draft, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open_at(directory.path().join("home")).unwrap();
        (directory, home)
    }

    #[test]
    fn a_damaged_list_is_never_a_shorter_one() {
        let (directory, home) = home();
        let tree = directory.path().canonicalize().unwrap().join("tree");
        std::fs::create_dir(&tree).unwrap();
        remember(&home, &[], std::slice::from_ref(&tree)).unwrap();
        let whole = std::fs::read(home.path().join(FILE)).unwrap();
        assert_eq!(known(&home).unwrap().len(), 1);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(home.path().join(FILE), &flipped).unwrap();
            assert!(known(&home).is_err(), "bit {bit} of {}", String::from_utf8_lossy(&flipped));
        }
        for cut in 0..whole.len() {
            std::fs::write(home.path().join(FILE), &whole[..cut]).unwrap();
            assert!(known(&home).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn the_first_versions_list_is_read_and_kept() {
        let (directory, home) = home();
        let tree = directory.path().canonicalize().unwrap().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let mut old = tree.as_os_str().as_encoded_bytes().to_vec();
        old.push(0);
        std::fs::write(home.path().join(FILE), &old).unwrap();
        let found = known(&home).unwrap();
        assert_eq!(found[0].as_path(), tree);
        assert!(found[0].identity.is_some());
        let other = directory.path().canonicalize().unwrap().join("other");
        std::fs::create_dir(&other).unwrap();
        remember(&home, &found, std::slice::from_ref(&other)).unwrap();
        let paths: Vec<PathBuf> =
            known(&home).unwrap().iter().map(|tree| tree.as_path().to_owned()).collect();
        assert_eq!(paths, [tree, other]);
    }

    #[test]
    fn what_was_checked_can_be_cleared() {
        let (directory, home) = home();
        let base = directory.path().canonicalize().unwrap();
        for name in ["a", "a/in", "b"] {
            std::fs::create_dir(base.join(name)).unwrap();
        }
        let trees = [base.join("a"), base.join("b")];
        remember(&home, &[], &trees).unwrap();
        let clear = |tree: &Path| clear::<io::Error>(&home, tree, |_| Ok(())).unwrap();
        assert_eq!(clear(&base.join("a/in")), Cleared::Within(base.join("a")));
        assert_eq!(clear(&base), Cleared::Trees(2));
        assert_eq!(clear(&base), Cleared::NotKnown);
        remember(&home, &[], &trees).unwrap();
        // Under another name it is the same tree.
        std::fs::rename(base.join("a"), base.join("c")).unwrap();
        assert_eq!(clear(&base.join("c")), Cleared::Trees(1));
        let refused = super::clear::<io::Error>(&home, &base.join("b"), |_| {
            Err(io::Error::other("a run is there"))
        });
        assert!(refused.is_err());
        assert_eq!(known(&home).unwrap().len(), 1);
    }
}
