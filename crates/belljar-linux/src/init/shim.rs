//! The process between PID 1 and a command whose descendants are tracked.
//!
//! Orphans come to it and not to PID 1, so what a command started is always what is below its shim: also
//! what forked twice or made a session of its own. It does nothing but reap, tell how the command ended,
//! and obey two orders. It stays as long as anything is below it. It is a copy of PID 1, with PID 1's
//! user and rights, and holds no descriptor of PID 1's but its two pipes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::ExitStatus;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};

use super::exit_status;
use super::tree::Tree;
use crate::sys::process::{adopt_descriptor, arrange_descriptors, exit_now, fork};
use crate::sys::signal;

/// How long a shim may take to end its tree before PID 1 does it itself: the shim of an ordinary user's
/// sandbox can be stopped from inside.
const KILLS_WITHIN: Duration = Duration::from_secs(5);

/// A word to the shim, or from it, is two bytes: never cut in a pipe.
const WORD: usize = 2;
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

/// What a shim told.
pub(super) enum ShimTold {
    Ended(ExitStatus),
    NotForked(Errno),
}

/// Who comes back from the two forks.
pub(super) enum Forked {
    Command,
    PidOne(Shim),
}

impl Shim {
    pub(super) fn fork() -> Result<Forked, Errno> {
        let (orders_read, orders) = pipe_with(PipeFlags::CLOEXEC)?;
        let (report, report_write) = pipe_with(PipeFlags::CLOEXEC)?;
        if let Some(pid) = fork()? {
            // Never waits for a shim, which could be stopped.
            let _ = rustix::io::ioctl_fionbio(&orders, true);
            let _ = rustix::io::ioctl_fionbio(&report, true);
            return Ok(Forked::PidOne(Self { pid, orders, report, ending: Ending::NotAsked }));
        }
        // From here on nothing may return to PID 1's code but the process that will be the command.
        let forked = signal::block_all().and_then(|()| adopt_orphans()).and_then(|()| fork());
        match forked {
            Ok(None) => Ok(Forked::Command),
            Ok(Some(main)) => serve(main, orders_read, report_write),
            Err(error) => {
                tell(report_write.as_fd(), [NOT_FORKED, error.raw_os_error() as u8]);
                exit_now(125)
            }
        }
    }

    pub(super) fn report(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// The next word, if there is one.
    pub(super) fn told(&self) -> Option<ShimTold> {
        let mut word = [0; WORD];
        loop {
            match rustix::io::read(&self.report, &mut word) {
                Ok(WORD) => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            return match word {
                [ENDED_CODE, code] => Some(ShimTold::Ended(ExitStatus::Code(code))),
                [ENDED_SIGNAL, signal] => Some(ShimTold::Ended(ExitStatus::Signal(signal))),
                [_, error] => Some(ShimTold::NotForked(Errno::from_raw_os_error(i32::from(error)))),
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
            self.ending = Ending::By(Instant::now() + KILLS_WITHIN);
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

    fn order(&self, word: [u8; WORD]) {
        // A full pipe means a shim that does not read; `Ending::By` is for that.
        let _ = rustix::io::write(&self.orders, &word);
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

fn tell(report: BorrowedFd<'_>, word: [u8; WORD]) {
    while let Err(Errno::INTR) = rustix::io::write(report, &word) {}
}

/// The shim's own life.
fn serve(main: Pid, orders: OwnedFd, report: OwnedFd) -> ! {
    // With a copy of a command's pipe here, nobody would ever read its end.
    let arranged = arrange_descriptors(0, vec![orders, report])
        .and_then(|()| Ok((adopt_descriptor(0)?, adopt_descriptor(1)?)));
    let children = signal::read_instead(&[libc::SIGCHLD]);
    let (Ok((orders, report)), Ok(children)) = (arranged, children) else {
        exit_now(125) // PID 1 sees a shim that ended before its command
    };
    let mut shim = Below { main: Some(main), report, orders: Some(orders), children };
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

struct Below {
    /// Until it is reaped; then its number may be somebody else's.
    main: Option<Pid>,
    report: OwnedFd,
    orders: Option<OwnedFd>,
    children: OwnedFd,
}

impl Below {
    /// Collects what ended. Without anything left below there is no reason to be.
    fn reap(&mut self) {
        while let Ok(Some(_)) = signal::next(&self.children) {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.main == Some(pid) => {
                    self.main = None;
                    let word = match exit_status(status) {
                        Some(ExitStatus::Code(code)) => [ENDED_CODE, code],
                        Some(ExitStatus::Signal(signal)) => [ENDED_SIGNAL, signal],
                        None => continue,
                    };
                    tell(self.report.as_fd(), word);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => exit_now(0), // no child is left
            }
        }
    }

    fn wait(&mut self, at_most: Option<Duration>) -> Vec<[u8; WORD]> {
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
        let mut buffer = [0; 64 * WORD];
        match self.orders.as_ref().map(|orders| rustix::io::read(orders, &mut buffer)) {
            Some(Ok(length)) if length > 0 => buffer[..length]
                .chunks_exact(WORD)
                .filter_map(|word| word.try_into().ok())
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
        // The command leads its own group; without one (it moved) the process itself is meant.
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
