//! Puts the caller's terminal in raw mode while the command has a terminal of its own.

use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::channel::Size;
use super::duplicate;

/// In raw mode for as long as this lives; then as it was.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    fd: Option<OwnedFd>,
    before: Option<Termios>,
}

impl RawTerminal {
    pub(super) fn new(fd: &OwnedFd) -> Self {
        let fd = duplicate(fd).ok();
        let before = fd.as_ref().and_then(|fd| tcgetattr(fd).ok());
        if let (Some(fd), Some(before)) = (&fd, &before) {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = tcsetattr(fd, OptionalActions::Drain, &raw); // fails only for something that is not a terminal
        }
        Self { fd, before }
    }

    pub(super) fn size(&self) -> Size {
        let size = self.fd.as_ref().and_then(|fd| tcgetwinsize(fd).ok());
        size.filter(|size| size.ws_row > 0).map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let (Some(fd), Some(before)) = (&self.fd, &self.before) {
            let _ = tcsetattr(fd, OptionalActions::Drain, before);
        }
    }
}
