//! Shortens the path of a Unix socket to the length that a socket address holds.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Without the terminating NUL.
const MAX_ADDRESS: usize = 107;

/// A path for a socket address. A longer one goes through the open directory that contains the socket.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// Part of a long path's address, so it lives as long as that is used.
    _directory: Option<OwnedFd>,
}

impl SocketPath {
    pub fn new(path: &Path) -> Result<Self, Errno> {
        if path.as_os_str().len() <= MAX_ADDRESS {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        Ok(Self { path: short.join(name), _directory: Some(directory) })
    }

    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_with_a_long_path_is_reached() {
        let temporary = tempfile::tempdir().unwrap();
        for length in [10, 107, 200] {
            let directory = temporary.path().join("d".repeat(length));
            std::fs::create_dir(&directory).unwrap();
            let path = directory.join("socket");
            let short = SocketPath::new(&path).unwrap();
            let _listener = UnixListener::bind(short.as_path()).unwrap();
            UnixStream::connect(SocketPath::new(&path).unwrap().as_path()).unwrap();
            assert!(path.exists());
        }
    }
}
