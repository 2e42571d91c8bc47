//! Puts a terminal in raw mode, and restores it when dropped.

use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// In raw mode for as long as this lives; then as it was.
#[derive(Debug)]
pub struct RawTerminal<F: AsFd> {
    fd: F,
    /// `None` where it is not a terminal, and nothing was changed.
    before: Option<Termios>,
}

impl<F: AsFd> RawTerminal<F> {
    pub fn enter(fd: F) -> Self {
        let before = tcgetattr(&fd).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = tcsetattr(&fd, OptionalActions::Drain, &raw); // fails only for something that is not a terminal
        }
        Self { fd, before }
    }

    pub fn fd(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> Drop for RawTerminal<F> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(&self.fd, OptionalActions::Drain, before);
        }
    }
}
