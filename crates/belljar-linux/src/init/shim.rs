//! The process between PID 1 and a command, which tracks the command's descendants.
//!
//! Orphans come to it and not to PID 1, so what a command started is always what is below its shim: also
//! what forked twice or made a new session. It does nothing but reap, report how the command ended,
//! and execute two orders. It stays as long as anything is below it. It is a copy of PID 1, with PID 1's
//! user and rights, and holds no descriptor of PID 1's but its two pipes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::ExitStatus;
use belljar_sys::signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};

use super::exit_status;
use super::tree::Tree;
use crate::sys::process::{adopt_descriptor, arrange_descriptors, exit_now, fork};

/// How long a shim may take to end its tree before PID 1 does it itself: the shim of an ordinary user's
/// sandbox can be stopped from inside.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the shim, or from it, is two bytes: never split in a pipe.
const MESSAGE: usize = 2;
const ORDER_SIGNAL: u8 = b's';
const ORDER_KILL: u8 = b'k';
const ENDED_CODE: u8 = b'c';
const ENDED_SIGNAL: u8 = b's';
const NOT_FORKED: u8 = b'f';

/// PID 1's side.
pub(super) struct Shim {
    pub(super) pid: Pid,
    orders: OwnedFd,
    report: OwnedFd,
    ending: Ending,
}

/// Whether a shim is to end what is below it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotAsked,
    By(Instant),
    /// It was too slow, and is being killed itself.
    Overdue,
}

/// What a shim reported.
pub(super) enum ShimReport {
    Ended(ExitStatus),
    NotForked(Errno),
}

/// Which process returns from the two forks.
pub(super) enum ForkedShim {
    Command,
    PidOne(Shim),
}

impl Shim {
    pub(super) fn fork() -> Result<ForkedShim, Errno> {
        let (orders_read, orders) = pipe_with(PipeFlags::CLOEXEC)?;
        let (report, report_write) = pipe_with(PipeFlags::CLOEXEC)?;
        if let Some(pid) = fork()? {
            // Never waits for a shim, which could be stopped.
            let _ = rustix::io::ioctl_fionbio(&orders, true);
            let _ = rustix::io::ioctl_fionbio(&report, true);
            return Ok(ForkedShim::PidOne(Self { pid, orders, report, ending: Ending::NotAsked }));
        }
        // From here on nothing may return to PID 1's code but the process that will be the command.
        let forked = signal::block_all().and_then(|()| adopt_orphans()).and_then(|()| fork());
        match forked {
            Ok(None) => Ok(ForkedShim::Command),
            Ok(Some(main)) => serve(main, orders_read, report_write),
            Err(error) => {
                send_report(report_write.as_fd(), [NOT_FORKED, error.raw_os_error() as u8]);
                exit_now(125)
            }
        }
    }

    pub(super) fn report(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// The next report, if there is one.
    pub(super) fn next_report(&self) -> Option<ShimReport> {
        let mut message = [0; MESSAGE];
        loop {
            match rustix::io::read(&self.report, &mut message) {
                Ok(MESSAGE) => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            return match message {
                [ENDED_CODE, code] => Some(ShimReport::Ended(ExitStatus::Code(code))),
                [ENDED_SIGNAL, signal] => Some(ShimReport::Ended(ExitStatus::Signal(signal))),
                [_, error] => {
                    Some(ShimReport::NotForked(Errno::from_raw_os_error(i32::from(error))))
                }
            };
        }
    }

    /// To the command's process group, if the command has not been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        self.order([ORDER_SIGNAL, signal.as_raw() as u8]);
    }

    /// Ends everything below. The shim itself ends when that is done.
    pub(super) fn kill_tree(&mut self) {
        self.order([ORDER_KILL, 0]);
        if self.ending == Ending::NotAsked {
            self.ending = Ending::By(Instant::now() + KILL_TIMEOUT);
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending != Ending::NotAsked
    }

    pub(super) fn end_by(&self) -> Option<Instant> {
        match self.ending {
            Ending::By(moment) => Some(moment),
            Ending::NotAsked | Ending::Overdue => None,
        }
    }

    /// The shim itself; what was below it comes to PID 1. Only while it has not been reaped.
    pub(super) fn kill(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        self.ending = Ending::Overdue;
    }

    fn order(&self, message: [u8; MESSAGE]) {
        // A full pipe means a shim that does not read; `Ending::By` is for that.
        let _ = rustix::io::write(&self.orders, &message);
        let _ = kill_process(self.pid, Signal::CONT); // it may have been stopped from inside
    }
}

/// Some gVisors have no such thing: there, what loses its parent goes to PID 1 and lives until the sandbox
/// ends, and only what can still be reached from the command ends with it.
fn adopt_orphans() -> Result<(), Errno> {
    match set_child_subreaper(Some(getpid())) {
        Err(Errno::INVAL) => Ok(()),
        done => done,
    }
}

fn send_report(report: BorrowedFd<'_>, message: [u8; MESSAGE]) {
    while let Err(Errno::INTR) = rustix::io::write(report, &message) {}
}

/// The main loop of the shim.
fn serve(main: Pid, orders: OwnedFd, report: OwnedFd) -> ! {
    // With a copy of a command's pipe here, its reader would never see the end.
    let arranged = arrange_descriptors(0, vec![orders, report])
        .and_then(|()| Ok((adopt_descriptor(0)?, adopt_descriptor(1)?)));
    let children = signal::read_instead(&[libc::SIGCHLD]);
    let (Ok((orders, report)), Ok(children)) = (arranged, children) else {
        exit_now(125) // PID 1 sees a shim that ended before its command
    };
    let mut shim = ShimState { main: Some(main), report, orders: Some(orders), children };
    loop {
        shim.reap();
        for order in shim.wait(None) {
            match order {
                [ORDER_SIGNAL, number] => shim.signal(number),
                _ => shim.end_all(),
            }
        }
    }
}

struct ShimState {
    /// Until it is reaped; then its pid may be another process's.
    main: Option<Pid>,
    report: OwnedFd,
    orders: Option<OwnedFd>,
    children: OwnedFd,
}

impl ShimState {
    /// Reaps what ended, and exits if nothing is left below.
    fn reap(&mut self) {
        while let Ok(Some(_)) = signal::next(&self.children) {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.main == Some(pid) => {
                    self.main = None;
                    let message = match exit_status(status) {
                        Some(ExitStatus::Code(code)) => [ENDED_CODE, code],
                        Some(ExitStatus::Signal(signal)) => [ENDED_SIGNAL, signal],
                        None => continue,
                    };
                    send_report(self.report.as_fd(), message);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => exit_now(0), // no child is left
            }
        }
    }

    fn wait(&mut self, at_most: Option<Duration>) -> Vec<[u8; MESSAGE]> {
        let timeout = at_most.map(|time| rustix::time::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        fds.extend(self.orders.as_ref().map(|orders| PollFd::new(orders, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref()); // interrupted, or nothing: the caller looks again
        if fds.get(1).is_none_or(|orders| orders.revents().is_empty()) {
            return Vec::new();
        }
        let mut buffer = [0; 64 * MESSAGE];
        match self.orders.as_ref().map(|orders| rustix::io::read(orders, &mut buffer)) {
            Some(Ok(length)) if length > 0 => buffer[..length]
                .chunks_exact(MESSAGE)
                .filter_map(|message| message.try_into().ok())
                .collect(),
            Some(Err(Errno::INTR)) => Vec::new(),
            _ => {
                self.orders = None; // PID 1 is gone, and the kernel ends us all
                Vec::new()
            }
        }
    }

    fn signal(&mut self, number: u8) {
        let (Some(main), Some(signal)) = (self.main, Signal::from_named_raw(i32::from(number)))
        else {
            return;
        };
        // The command leads its process group; if it has left that, the process itself is signalled.
        if kill_process_group(main, signal).is_err() {
            let _ = kill_process(main, signal);
        }
    }

    fn end_all(&mut self) -> ! {
        loop {
            Tree { root: getpid(), spared: &[] }.end_once();
            self.reap();
            self.wait(Some(Duration::from_millis(10)));
            self.reap();
        }
    }
}
