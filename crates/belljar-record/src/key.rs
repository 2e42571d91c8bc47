//! The home's key, and the key of one run that comes from it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use belljar_spec::RunId;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::{Zeroize, Zeroizing};

use super::file;

const NAME: &str = "key";
const LENGTH: usize = 32;
/// Names what the derived key is for: another use of the home's key would have another line.
const PURPOSE: &[u8] = b"belljar: key of a run's record, 1\0";

/// Secret of one home. Whoever has it can write records that verify.
pub struct HomeKey([u8; LENGTH]);

/// Secret of one run's record.
#[derive(Clone)]
pub struct RunKey([u8; LENGTH]);

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(
        "{path} is missing, so no record of this home can be checked; restore it from a backup",
        path = .path.display()
    )]
    Missing { path: PathBuf },
    #[error("cannot make or read {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{path} is not a regular file, so it is not read; remove it, or restore the key from a backup",
        path = .path.display()
    )]
    NoFile { path: PathBuf },
    #[error(
        "others can read or write {path} (mode {mode:03o}), so they could forge records; run: \
         chmod 600 {path}", path = .path.display()
    )]
    OpenToOthers { path: PathBuf, mode: u32 },
    #[error(
        "{path} belongs to user {owner} and belljar runs as user {user}; give it to user {user}, \
         or set BELLJAR_HOME to a directory of your own", path = .path.display()
    )]
    OtherOwner { path: PathBuf, owner: u32, user: u32 },
    #[error(
        "{path} has {length} bytes and a key has {LENGTH}; restore it from a backup, or remove it: \
         a new one is made, and older records can then not be checked", path = .path.display()
    )]
    WrongLength { path: PathBuf, length: u64 },
}

impl HomeKey {
    /// The home's key; made if there is none. Of several that make one at once, all get the same.
    pub fn load_or_make(home: &Path) -> Result<Self, KeyError> {
        match Self::load(home) {
            Err(KeyError::Missing { .. }) => {}
            other => return other,
        }
        if has_records(home) {
            return Self::load(home); // made meanwhile, or lost: then a new one would hide that
        }
        let path = home.join(NAME);
        make(home, &path).map_err(|error| KeyError::Io { path, error })?;
        Self::load(home)
    }

    pub fn load(home: &Path) -> Result<Self, KeyError> {
        let path = home.join(NAME);
        let io = |error: io::Error| KeyError::Io { path: path.clone(), error };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(KeyError::Missing { path }),
            // A link, or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(KeyError::NoFile { path }),
            Err(errno) => return Err(io(errno.into())),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| io(errno.into()))?;
        check(&path, &stat, rustix::process::geteuid().as_raw())?;
        let mut key = Self([0; LENGTH]);
        file.read_exact(&mut key.0).map_err(io)?;
        Ok(key)
    }

    /// What containers of this home are marked with. It reveals nothing about the key.
    pub fn owner_label(&self) -> String {
        let hash = blake3::keyed_hash(&self.0, b"belljar: whose container it is");
        hash.to_hex()[..32].to_owned()
    }

    /// Another run's record cannot be passed off as this one's.
    pub fn for_run(&self, id: &RunId) -> RunKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(PURPOSE).update(id.as_str().as_bytes());
        RunKey(*hasher.finalize().as_bytes())
    }
}

impl RunKey {
    /// The keyed hash of a line's bytes.
    pub(super) fn sign(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, bytes)
    }
}

/// Whether a run of this home has written a log, which takes a key.
fn has_records(home: &Path) -> bool {
    let runs = std::fs::read_dir(home.join("runs")).into_iter().flatten().flatten();
    runs.into_iter().any(|run| run.path().join(super::EVENTS).exists())
}

/// Whether only `user` can have read or written the file.
fn check(path: &Path, stat: &Stat, user: u32) -> Result<(), KeyError> {
    let path = path.to_owned();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(KeyError::NoFile { path });
    }
    if stat.st_uid != user {
        return Err(KeyError::OtherOwner { path, owner: stat.st_uid, user });
    }
    let mode = stat.st_mode & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::OpenToOthers { path, mode });
    }
    let length = u64::try_from(stat.st_size).unwrap_or_default();
    if length != LENGTH as u64 {
        return Err(KeyError::WrongLength { path, length });
    }
    Ok(())
}

/// By a link, so that the name never holds half a key, and the first of several makers wins.
fn make(home: &Path, path: &Path) -> io::Result<()> {
    let mut key = Zeroizing::new([0; LENGTH]);
    getrandom::fill(&mut *key).map_err(io::Error::other)?;
    match link_unnamed(home, path, &key) {
        Ok(()) | Err(Errno::EXIST) => {}
        // No unnamed files in this file system, or no /proc to name them by.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            link_draft(home, path, &key)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    // A record whose key is lost in a power cut could never be checked.
    File::open(home)?.sync_all()
}

/// A maker that is killed leaves nothing behind.
#[cfg(target_os = "linux")]
fn link_unnamed(home: &Path, path: &Path, key: &[u8; LENGTH]) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;

    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::open(home, flags, Mode::from_raw_mode(file::PRIVATE))?;
    write_synced(&mut File::from(file.try_clone().map_err(|_| Errno::MFILE)?), key)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(not(target_os = "linux"))]
fn link_unnamed(_: &Path, _: &Path, _: &[u8; LENGTH]) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

fn link_draft(home: &Path, path: &Path, key: &[u8; LENGTH]) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let draft = home.join(format!(".key.{:016x}", u64::from_le_bytes(random)));
    let mut file = file::create(&draft)?;
    let linked = write_synced(&mut file, key)
        .and_then(|()| Ok(rustix::fs::linkat(CWD, &draft, CWD, path, AtFlags::empty())?));
    let removed = std::fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => removed,
    }
}

fn write_synced(file: &mut File, key: &[u8; LENGTH]) -> io::Result<()> {
    file.write_all(key)?;
    file.sync_all()
}

impl Drop for HomeKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for RunKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for HomeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HomeKey(…)")
    }
}

impl std::fmt::Debug for RunKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_file_must_have_a_name_a_draft_is_linked_and_removed() {
        let temp = tempfile::TempDir::new().unwrap();
        let path = temp.path().join(NAME);
        link_draft(temp.path(), &path, &[7; LENGTH]).unwrap();
        link_draft(temp.path(), &path, &[8; LENGTH]).unwrap();
        assert_eq!(HomeKey::load(temp.path()).unwrap().0, [7; LENGTH], "the first one wins");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_of_another_user_is_refused() {
        let temp = tempfile::TempDir::new().unwrap();
        HomeKey::load_or_make(temp.path()).unwrap();
        let path = temp.path().join(NAME);
        let stat = rustix::fs::stat(&path).unwrap();
        let refused = check(&path, &stat, stat.st_uid + 1);
        assert!(matches!(refused, Err(KeyError::OtherOwner { owner, .. }) if owner == stat.st_uid));
        assert!(check(&path, &stat, stat.st_uid).is_ok());
    }
}
