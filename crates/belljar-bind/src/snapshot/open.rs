//! Opens entries of a tree whatever their mode is, and restores the mode.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat, chmod, fchmod, fstat, openat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ITSELF: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What it takes to list a directory and to open what is in it.
const ENTER: u32 = 0o500;
const READ: u32 = 0o400;

/// An open directory. One that denies its owner is made accessible while it is in use: a killed
/// copy leaves it so.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
    /// The mode that it had.
    pub(super) lock: Option<Mode>,
}

impl Directory {
    pub(super) fn open(parent: impl AsFd, name: &CStr) -> Result<Self, Errno> {
        match openat(&parent, name, DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let itself = openat(&parent, name, ITSELF | OFlags::DIRECTORY, Mode::empty())?;
                let stat = fstat(&itself)?;
                let mode = Mode::from_raw_mode(stat.st_mode);
                // A descriptor made with O_PATH has no fchmod; its entry in /proc leads to exactly this inode.
                chmod(in_proc(&itself), mode | Mode::from_raw_mode(ENTER))?;
                match openat(&itself, c".", DIRECTORY, Mode::empty()) {
                    Ok(fd) => Ok(Self { fd, stat, lock: Some(mode) }),
                    Err(error) => {
                        let _ = chmod(in_proc(&itself), mode);
                        Err(error)
                    }
                }
            }
            fd => {
                let fd = fd?;
                let stat = fstat(&fd)?;
                let mode = Mode::from_raw_mode(stat.st_mode);
                let is_closed = stat.st_mode & ENTER != ENTER && is_callers(&stat);
                if is_closed {
                    fchmod(&fd, mode | Mode::from_raw_mode(ENTER))?;
                }
                Ok(Self { fd, stat, lock: is_closed.then_some(mode) })
            }
        }
    }

    /// One more descriptor.
    pub(super) fn fd_of_same(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(super) fn close_up(self) {
        if let Some(mode) = self.lock {
            let _ = fchmod(&self.fd, mode);
        }
    }
}

/// Root needs no mode's leave.
fn is_callers(stat: &Stat) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && stat.st_uid == user.as_raw()
}

/// A file that is open for reading. One that denies its owner is made accessible meanwhile.
#[derive(Debug)]
pub(super) struct File {
    pub(super) fd: OwnedFd,
    lock: Option<Mode>,
}

impl File {
    pub(super) fn open(parent: impl AsFd, name: &CStr) -> Result<Self, Errno> {
        // Not blocking: what was a file a moment ago may be a FIFO.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let itself = openat(&parent, name, ITSELF, Mode::empty())?;
                let stat = fstat(&itself)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(Errno::NOENT); // exchanged
                }
                let mode = Mode::from_raw_mode(stat.st_mode);
                chmod(in_proc(&itself), mode | Mode::from_raw_mode(READ))?;
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                match rustix::fs::open(in_proc(&itself), flags, Mode::empty()) {
                    Ok(fd) => Ok(Self { fd, lock: Some(mode) }),
                    Err(error) => {
                        let _ = chmod(in_proc(&itself), mode);
                        Err(error)
                    }
                }
            }
            opened => Ok(Self { fd: opened?, lock: None }),
        }
    }

    /// With the mode that it has when it is not in use.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        let mut stat = fstat(&self.fd)?;
        if let Some(mode) = self.lock {
            stat.st_mode = (stat.st_mode & !0o7777) | (mode.as_raw_mode() & 0o7777);
        }
        Ok(stat)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(mode) = self.lock {
            let _ = fchmod(&self.fd, mode);
        }
    }
}

fn in_proc(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
