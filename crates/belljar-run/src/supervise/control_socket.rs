//! The control socket of a run, in the home's `live/` directory, to which clients connect.
//!
//! In the home and not in the session's runtime directory: that one is removed at logout, and a detached run
//! stays.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::socket_path::SocketPath;

const CLOSED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct ControlSocket {
    fd: OwnedFd,
    path: PathBuf,
    closed_until: Option<Instant>,
}

impl ControlSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let short = SocketPath::new(path)?;
        bind(&fd, &SocketAddrUnix::new(short.as_path())?)?;
        rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?;
        listen(&fd, 64)?;
        Ok(Self { fd, path: path.to_owned(), closed_until: None })
    }

    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.closed_until.is_none().then(|| PollFd::new(&self.fd, PollFlags::IN))
    }

    /// The next client of the same user.
    pub(super) fn accept(&mut self) -> Option<OwnedFd> {
        if self.closed_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.closed_until = None;
        loop {
            match accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => {
                    let peer = rustix::net::sockopt::socket_peercred(&connection).ok()?;
                    if peer.uid == rustix::process::geteuid() {
                        return Some(connection);
                    }
                    let uid = peer.uid.as_raw();
                    tracing::debug!(uid, "control connection refused: another user's");
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                // Out of descriptors: clients wait, and the loop must not spin.
                Err(error) => {
                    tracing::debug!(%error, "control connection not accepted");
                    self.closed_until = Some(Instant::now() + CLOSED_FOR);
                    return None;
                }
            }
        }
    }

    /// When to accept again, after an error.
    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.closed_until
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // else the next command does
    }
}

/// Connects to a supervisor's socket.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let short = SocketPath::new(path)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(short.as_path())?)?;
    Ok(fd)
}
