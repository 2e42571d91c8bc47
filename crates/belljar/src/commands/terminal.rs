//! The caller's terminal: its size, and its hang-up.

use std::io::IsTerminal;

use belljar::spec::wire::control::WindowSize;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdin;
use rustix::termios::tcgetwinsize;
use tokio::sync::oneshot;

/// Whether the command gets a terminal: by flag, or because stdin and stdout are terminals.
pub(super) fn wanted(asked: bool, refused: bool) -> bool {
    let both = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    asked || (both && !refused)
}

/// The size of the caller's terminal; 24 by 80 without one.
pub(super) fn size() -> WindowSize {
    let found = tcgetwinsize(stdin()).or_else(|_| tcgetwinsize(rustix::stdio::stdout())).ok();
    found.filter(|size| size.ws_row > 0 && size.ws_col > 0).map_or(
        WindowSize { rows: 24, columns: 80 },
        |size| WindowSize { rows: size.ws_row, columns: size.ws_col },
    )
}

/// Reports when the caller's terminal hangs up; `None` without a terminal.
pub(super) fn watch() -> Option<oneshot::Receiver<()>> {
    let streams = [stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let terminal = streams.into_iter().find(|stream| stream.is_terminal())?;
    let (sender, receiver) = oneshot::channel();
    // No events are requested, so `poll` returns only when the terminal hangs up.
    std::thread::spawn(move || {
        let mut fds = [PollFd::new(&terminal, PollFlags::empty())];
        loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                Err(_) => return,
                Ok(_) => break,
            }
        }
        let _ = sender.send(()); // the receiver may be gone
    });
    Some(receiver)
}
