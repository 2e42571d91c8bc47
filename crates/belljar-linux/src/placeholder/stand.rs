//! One placeholder: made, known again, removed. By descriptor and never through a link: the tree is one that
//! runs can write.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_spec::later::{GIT_DIRECTORY, StandIn};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, chownat, fchmod, fstat,
    mkdirat, mknodat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

/// The mode of a file or directory that only holds a place.
const FILE_MODE: Mode = Mode::from_raw_mode(0o444);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Whether anything is there.
pub(super) fn stands(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Device and inode of what was made. `None`: nothing can be made there, by the run neither.
pub(super) fn make(path: &Path, stand_in: StandIn) -> Result<Option<(u64, u64)>, Errno> {
    let (parent, name) = match parent_of(path) {
        // Gone, or a link by now: there is no such directory to make something in.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        parent => parent?,
    };
    let made = match stand_in {
        StandIn::Socket => {
            match mknodat(&parent, name, FileType::Socket, Mode::empty(), 0) {
                // Not every file system has sockets.
                Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    make_file(&parent, name, "")
                }
                made => made,
            }
        }
        StandIn::EmptyDirectory => make_directory(&parent, name),
        StandIn::File(content) => make_file(&parent, name, content),
    };
    match made {
        Ok(()) => {}
        Err(Errno::ROFS) => return Ok(None),
        // The run has the rights of an ordinary user who starts it, and no others: an owner can take the right
        // to write, and anybody else cannot.
        Err(Errno::ACCESS) if !is_own(&parent)? => return Ok(None),
        Err(error) => return Err(error),
    }
    let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(Some((stat.st_dev, stat.st_ino)))
}

fn is_own(directory: &OwnedFd) -> Result<bool, Errno> {
    let me = rustix::process::geteuid();
    Ok(me.is_root() || fstat(directory)?.st_uid == me.as_raw())
}

/// Whoever owns what it lies in owns it: the run may be allowed to make something there.
fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    mkdirat(parent, name, DIRECTORY_MODE)?;
    if rustix::process::geteuid().is_root() {
        let above = fstat(parent)?;
        let (uid, gid) = (Uid::from_raw(above.st_uid), Gid::from_raw(above.st_gid));
        chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn make_file(parent: &OwnedFd, name: &OsStr, content: &str) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, FILE_MODE)?;
    fchmod(&file, FILE_MODE)?; // whatever the umask: git reads it as its own user
    match rustix::io::write(&file, content.as_bytes())? == content.len() {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

/// Removes it if it is what was made, and nothing else ever.
pub(super) fn remove(path: &Path, made: Option<(u64, u64)>) -> Result<(), Errno> {
    let gone = |error| match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(()),
        error => Err(error),
    };
    let (parent, name) = match parent_of(path) {
        Ok(parent) => parent,
        Err(error) => return gone(error),
    };
    let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(error) => return gone(error),
    };
    if made.is_some_and(|made| made != (stat.st_dev, stat.st_ino)) {
        return Ok(());
    }
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket if is_held(&stat) => AtFlags::empty(),
        FileType::Directory => AtFlags::REMOVEDIR, // only an empty one goes
        FileType::RegularFile if is_untouched(&parent, name, &stat) => AtFlags::empty(),
        _ => return Ok(()),
    };
    match unlinkat(&parent, name, flags) {
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => gone(error),
    }
}

/// A socket that others could connect to, if anybody listened, is none of ours.
pub(super) fn is_held(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_mode & 0o7777 == 0
}

/// Still holds what was put into it.
fn is_untouched(parent: &OwnedFd, name: &OsStr, stat: &Stat) -> bool {
    let known = GIT_DIRECTORY.iter().filter_map(|entry| match entry.stand_in {
        Some(StandIn::File(content)) => Some(content),
        _ => None,
    });
    let is_ours = |fd: OwnedFd| {
        let same =
            fstat(&fd).is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino));
        let mut content = String::new();
        let read = std::fs::File::from(fd).take(16).read_to_string(&mut content);
        same && read.is_ok() && (content.is_empty() || known.clone().any(|known| known == content))
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    stat.st_mode & 0o777 == FILE_MODE.as_raw_mode()
        && openat(parent, name, flags, Mode::empty()).is_ok_and(is_ours)
}

fn parent_of(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let (parent, name) =
        (path.parent().ok_or(Errno::INVAL)?, path.file_name().ok_or(Errno::INVAL)?);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok((openat2(CWD, parent, flags, Mode::empty(), no_links)?, name))
}
