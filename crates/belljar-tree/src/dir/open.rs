//! Opens and reads files: regular ones only, and none that could make the caller wait.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, OFlags, fstat, statat};
use rustix::io::Errno;

use super::Dir;
use crate::error::{OpenFileError, ReadFileError};
use crate::metadata::EntryKind;

/// A FIFO has no writer to wait for, a terminal does not become ours.
const CAREFUL: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

impl Dir {
    /// Opens a regular file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File, OpenFileError> {
        self.open_regular(path.as_ref(), OFlags::RDONLY)
    }

    /// Opens a regular file that exists for reading and writing.
    pub fn open_file_writable(&self, path: impl AsRef<Path>) -> Result<File, OpenFileError> {
        self.open_regular(path.as_ref(), OFlags::RDWR)
    }

    /// The content of a regular file, if that is at most so many bytes.
    pub fn read_file(&self, path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>, ReadFileError> {
        let path = path.as_ref();
        let file = self.open_file(path)?;
        let mut content = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut content).map_err(|error| {
            let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            ReadFileError::Read { path: path.to_owned(), error }
        })?;
        match content.len() as u64 > most {
            true => Err(ReadFileError::TooLarge { path: path.to_owned(), most }),
            false => Ok(content),
        }
    }

    fn open_regular(&self, path: &Path, access: OFlags) -> Result<File, OpenFileError> {
        let (parent, name) = self.parent_of::<OpenFileError>(path)?;
        let parent = parent.as_fd();
        let at = || path.to_owned();
        // Looked at first, since to open a device may do something.
        let kind = kind(parent, name).map_err(|error| failed(path, error))?;
        if kind != EntryKind::File {
            return Err(OpenFileError::NotRegular { path: at(), kind });
        }
        let opened = match self.rules().open_name(parent, name, access | CAREFUL) {
            Ok(opened) => opened,
            // Exchanged meanwhile.
            Err(Errno::LOOP) => {
                return Err(OpenFileError::NotRegular { path: at(), kind: EntryKind::Symlink });
            }
            Err(error @ (Errno::NXIO | Errno::ISDIR | Errno::OPNOTSUPP)) => {
                return Err(match self::kind(parent, name) {
                    Ok(kind) if kind != EntryKind::File => {
                        OpenFileError::NotRegular { path: at(), kind }
                    }
                    _ => failed(path, error),
                });
            }
            Err(error) => return Err(failed(path, error)),
        };
        // What was opened is what counts, and not what was there before.
        let stat = fstat(&opened).map_err(|error| failed(path, error))?;
        match EntryKind::of(FileType::from_raw_mode(stat.st_mode)) {
            EntryKind::File => Ok(File::from(opened)),
            kind => Err(OpenFileError::NotRegular { path: at(), kind }),
        }
    }
}

fn kind(parent: BorrowedFd<'_>, name: &OsStr) -> Result<EntryKind, Errno> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(EntryKind::of(FileType::from_raw_mode(stat.st_mode)))
}

fn failed(path: &Path, error: Errno) -> OpenFileError {
    let path = path.to_owned();
    match error {
        Errno::NOENT => OpenFileError::Missing { path },
        Errno::XDEV => OpenFileError::Mount { path },
        Errno::WOULDBLOCK => OpenFileError::Leased { path },
        error => OpenFileError::System { path, error },
    }
}
