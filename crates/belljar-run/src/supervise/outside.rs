//! What the supervisor sees outside the sandbox: signals to itself, and the command's uid on the host.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use belljar_sys::kernel_file::read_text;
use belljar_sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::SuperviseError;
use super::event_source::{EventSource, PollSet};
use super::libc_signal::{CHLD, HUP, INT, QUIT, TERM, WINCH};

/// Signals to the supervisor, read from a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(super) fd: OwnedFd,
    /// The caller's terminal, until it hangs up. One that controls no session does so without a signal.
    terminal: Option<BorrowedFd<'static>>,
}

impl Signals {
    /// SIGCHLD is one of them: the host backend's command is a child of the supervisor.
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = signal::read_instead(&[INT, TERM, HUP, QUIT, WINCH, CHLD])?;
        let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
        let terminal = streams.into_iter().find(|stream| rustix::termios::isatty(stream));
        Ok(Self { fd, terminal })
    }

    /// Without events: a hang-up is reported in any case.
    fn terminal_fd(&self) -> Option<PollFd<'_>> {
        self.terminal.as_ref().map(|terminal| PollFd::new(terminal, PollFlags::empty()))
    }

    /// Whether the terminal hung up; reported once.
    fn is_hung_up(&mut self) -> bool {
        let Some(terminal) = self.terminal_fd() else { return false };
        let mut fds = [terminal];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let asked = poll(&mut fds, Some(&now)).is_ok();
        let is_gone = asked && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        if is_gone {
            self.terminal = None;
        }
        is_gone
    }

    pub(super) fn take(&self) -> Vec<i32> {
        std::iter::from_fn(|| signal::next(&self.fd).ok().flatten()).collect()
    }
}

impl EventSource for Signals {
    type Parts<'p> = ();
    /// The number of a signal. A hang-up of the terminal is one too.
    type Event = i32;

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        poll.fds().push(PollFd::new(&self.fd, PollFlags::IN));
        poll.fds().extend(self.terminal_fd());
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn take_turn(&mut self, _: Instant, (): ()) -> Result<Vec<i32>, SuperviseError> {
        let hang_up = self.is_hung_up().then_some(HUP);
        Ok(hang_up.into_iter().chain(self.take()).collect())
    }
}

/// The uid of PID 1's child, as the host's kernel knows it. `Some` is what is wrong with it.
///
/// Where the kernel does not list children, the uid map that the launcher wrote itself and that the
/// attestation read back has to do; where an engine wrote it, there is nothing to go by.
pub(super) fn host_uid_of_child(init: i32, expected: u32, map: Option<&str>) -> Option<String> {
    match (look(init, expected), map) {
        (Some(Ok(())), _) | (None, Some(_)) => None,
        (Some(Err(wrong)), _) => Some(wrong),
        (None, None) => Some("the command cannot be found on the host".to_owned()),
    }
}

/// `None` where it cannot be seen.
fn look(init: i32, expected: u32) -> Option<Result<(), String>> {
    let children = read_text(format!("/proc/{init}/task/{init}/children")).ok()?;
    let child = children.split_whitespace().next()?;
    let status = read_text(format!("/proc/{child}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uids: Vec<u32> = line.split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    let right = uids.len() == 4 && uids.iter().all(|uid| *uid == expected && *uid != 0);
    let wrong = || format!("on the host the command has the uids {uids:?}, not {expected}");
    Some(if right { Ok(()) } else { Err(wrong()) })
}
