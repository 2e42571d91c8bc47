//! The caller's terminal while the command has one too: raw mode and size.

use std::os::fd::OwnedFd;

use rustix::termios::tcgetwinsize;

use super::channel::Size;
use super::duplicate;
use crate::raw_terminal::RawTerminal;

/// In raw mode for as long as this lives.
#[derive(Debug)]
pub(crate) struct CallersTerminal(Option<RawTerminal<OwnedFd>>);

impl CallersTerminal {
    pub(super) fn new(fd: &OwnedFd) -> Self {
        Self(duplicate(fd).ok().map(RawTerminal::enter))
    }

    pub(super) fn size(&self) -> Size {
        let size = self.0.as_ref().and_then(|terminal| tcgetwinsize(terminal.fd()).ok());
        size.filter(|size| size.ws_row > 0).map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }
}
