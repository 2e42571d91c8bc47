//! Answers the system calls that a traced filter reports, each with the error that the plain filter gives, and counts
//! them.
//!
//! There is one listener for each command, which hands it to PID 1 when it has locked itself down. PID 1 cannot be
//! stopped, killed or traced from inside. It never lets a call through, and if it dies the kernel answers ENOSYS: who
//! listens makes no difference to what is refused. A run can report millions of calls; PID 1 answers a bounded number
//! in each window of time, and a process whose call has to wait is merely slower.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::denied_call::{
    DeniedCall, DeniedCallCount, DeniedCounts, UNKNOWN_CALL, kept_arguments,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::filter::{call_name, refusal_errno};
use crate::sys::seccomp::{self, CallData};

/// Calls that are answered in each window: 20 000 a second.
const WINDOW: Duration = Duration::from_millis(10);
const ANSWERS_PER_WINDOW: u32 = 200;
/// From the first call that was counted to the message with the counts.
const REPORT_AFTER: Duration = Duration::from_millis(200);

/// The way of one listener from a command's process to PID 1.
pub(super) struct ListenerSocket(OwnedFd);

impl ListenerSocket {
    /// PID 1's end, and that of the process.
    pub(super) fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((Self(ours), theirs))
    }

    /// What was handed over, if it has come.
    pub(super) fn receive(&self) -> Option<OwnedFd> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
        ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
    }
}

impl AsFd for ListenerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Hands a listener to PID 1.
pub(super) fn hand_over(listener: &OwnedFd, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(to, &[IoSlice::new(b".")], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

struct Listener {
    exec: u32,
    fd: OwnedFd,
    counting: Counting,
}

/// Whether the calls of a command count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// Not before it is released: until then it tries forbidden calls itself, to attest.
    Off,
    On,
}

#[derive(Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    counts: DeniedCounts,
    /// When the counts are to be reported.
    report_at: Option<Instant>,
    window: Window,
}

/// How much was done in the present window of time.
#[derive(Default)]
struct Window {
    ends: Option<Instant>,
    answered: u32,
}

impl Window {
    /// Until when nothing more is done.
    fn closed_until(&self) -> Option<Instant> {
        self.ends.filter(|_| self.answered >= ANSWERS_PER_WINDOW)
    }

    fn is_open(&mut self, now: Instant) -> bool {
        if self.ends.is_none_or(|ends| now >= ends) {
            *self = Self { ends: Some(now + WINDOW), answered: 0 };
        }
        self.answered < ANSWERS_PER_WINDOW
    }
}

impl Listeners {
    pub(super) fn add(&mut self, exec: u32, fd: OwnedFd) {
        self.all.push(Listener { exec, fd, counting: Counting::Off });
    }

    /// The command is released: from here on its refused calls are its own.
    pub(super) fn count(&mut self, exec: u32) {
        for listener in self.all.iter_mut().filter(|listener| listener.exec == exec) {
            listener.counting = Counting::On;
        }
    }

    /// Adds the descriptors to wait for. None while enough was done in this window.
    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.window.closed_until().is_none_or(|until| Instant::now() >= until) {
            fds.extend(self.all.iter().map(|one| PollFd::new(&one.fd, PollFlags::IN)));
        }
    }

    /// When a closed window ends, and there is something to answer again.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        self.window.closed_until().filter(|_| !self.all.is_empty())
    }

    pub(super) fn report_at(&self) -> Option<Instant> {
        self.report_at
    }

    /// The counts since the last report.
    pub(super) fn take_counts(&mut self) -> Vec<DeniedCallCount> {
        self.report_at = None;
        self.counts.take()
    }

    /// Answers calls that wait, one of each command after the other, while the window allows it. A listener whose
    /// processes are all gone is closed.
    pub(super) fn answer(&mut self) {
        const NO_WAIT: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        while !self.all.is_empty() && self.window.is_open(Instant::now()) {
            let mut fds: Vec<PollFd<'_>> =
                self.all.iter().map(|one| PollFd::new(&one.fd, PollFlags::IN)).collect();
            if !matches!(poll(&mut fds, Some(&NO_WAIT)), Ok(1..)) {
                return;
            }
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            for (at, ready) in ready.iter().enumerate() {
                // Only then: where no call waits, the kernel would block.
                if ready.contains(PollFlags::IN) {
                    self.answer_one(at);
                }
            }
            let mut ready = ready.into_iter();
            let is_over = |ready: PollFlags| !ready.is_empty() && !ready.contains(PollFlags::IN);
            self.all.retain(|_| !ready.next().is_some_and(is_over));
        }
    }

    fn answer_one(&mut self, at: usize) {
        let Some(Listener { fd, counting, .. }) = self.all.get(at) else { return };
        self.window.answered += 1;
        let Ok(call) = seccomp::receive(fd.as_fd()) else { return };
        let data = call.data;
        let errno = refusal_errno(&data);
        // One whose process is gone was not answered; one that was interrupted comes again. Neither counts.
        if seccomp::refuse(fd.as_fd(), call, errno).is_ok() && *counting == Counting::On {
            self.counts.add(&denied(&data, errno), 1);
            self.report_at.get_or_insert_with(|| Instant::now() + REPORT_AFTER);
        }
    }
}

fn denied(call: &CallData, errno: Errno) -> DeniedCall {
    let errno = u16::try_from(errno.raw_os_error()).unwrap_or_default();
    match call_name(call.number) {
        Some(name) => {
            let kept = kept_arguments(name).iter();
            let args = kept.map(|kept| call.arguments[kept.index] & kept.mask).collect();
            DeniedCall { name: name.to_owned(), errno, args }
        }
        None => {
            let args = vec![u64::from(call.number)];
            DeniedCall { name: UNKNOWN_CALL.to_owned(), errno, args }
        }
    }
}
