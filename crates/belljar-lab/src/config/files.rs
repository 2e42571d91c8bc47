//! Reading small files that may be hostile.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::workspace::beneath;

/// More than any configuration needs.
const MAX_BYTES: u64 = 1 << 20;

/// Whether the last part of the path may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

pub(crate) struct ReadFile {
    pub(crate) content: Vec<u8>,
    pub(crate) owner: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{path} is a symbolic link, which is not followed, because it may have been planted; put \
         the file itself there, or name it with a flag", path = .0.display()
    )]
    Link(PathBuf),
    #[error("{path} is no regular file", path = .0.display())]
    NotRegular(PathBuf),
    #[error("{path} has more than {MAX_BYTES} bytes, the most that is read", path = .0.display())]
    TooLarge(PathBuf),
}

// NONBLOCK: a FIFO must not hold us up before it is seen to be one.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Nothing if there is no such file.
pub(crate) fn read(path: &Path, links: Links) -> Result<Option<ReadFile>, ReadError> {
    let flags = match links {
        Links::Follow => FLAGS,
        Links::Refuse => FLAGS | OFlags::NOFOLLOW,
    };
    read_opened(path, rustix::fs::open(path, flags, Mode::empty()))
}

/// The same for a file below a directory, in which no link is followed on the way either.
pub(crate) fn read_below(directory: &Path, below: &Path) -> Result<Option<ReadFile>, ReadError> {
    let path = directory.join(below);
    let root = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, root, Mode::empty()).and_then(|root| {
        let (parent, name) = beneath::parent(root.as_fd(), below).map_err(|errno| {
            // A link in the place of a directory is called "no directory"; who follows it finds one.
            let led_there = path.parent().is_some_and(Path::is_dir);
            if errno == Errno::NOTDIR && led_there { Errno::LOOP } else { errno }
        })?;
        rustix::fs::openat(&parent, name, FLAGS | OFlags::NOFOLLOW, Mode::empty())
    });
    read_opened(&path, opened)
}

fn read_opened(path: &Path, opened: Result<OwnedFd, Errno>) -> Result<Option<ReadFile>, ReadError> {
    let io = |error: io::Error| ReadError::Io { path: path.to_owned(), error };
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => return Err(ReadError::Link(path.to_owned())),
        // What opening a socket or a device without a driver says.
        Err(Errno::NXIO) => return Err(ReadError::NotRegular(path.to_owned())),
        Err(errno) => return Err(io(errno.into())),
    };
    let stat = rustix::fs::fstat(&file).map_err(|errno| io(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(ReadError::NotRegular(path.to_owned()));
    }
    let mut content = Vec::new();
    let read = File::from(file).take(MAX_BYTES + 1).read_to_end(&mut content).map_err(io)?;
    if read as u64 > MAX_BYTES {
        return Err(ReadError::TooLarge(path.to_owned()));
    }
    Ok(Some(ReadFile { content, owner: stat.st_uid }))
}
