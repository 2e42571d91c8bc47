//! Uses up what the kernel counts per user, and holds it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use belljar_linux::sys::take;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, Mode, OFlags, inotify, memfd_create, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Arguments, ProbeError, Probed};
use crate::probe_report::ProbeReport;

/// More than any of them has by default.
const MAX_COUNT: u64 = 1 << 30;
/// A message carries so many descriptors at most.
const IN_A_MESSAGE: usize = 253;
/// As large a piece of memory as is locked at once.
const PIECE: usize = 64 * 1024;

/// Takes one more, and how much that is.
type Take = Box<dyn FnMut() -> Result<u64, Errno>>;

/// `KIND COUNT HOLD-MS [LIMIT]`: takes that many, or as many as it gets, and keeps them. With a limit, which is
/// this process's own and its children's, it is set first. Then says whether another process gets one.
pub(super) fn take(args: &Arguments<'_>) -> Probed {
    let kind = args.text(0, "what to take")?.to_owned();
    let most = args.number(1, "how many")?.min(MAX_COUNT);
    // Who takes only one is any program, with the usual limit; but for descriptors in flight, where the kernel compares
    // what the user has with the limit of whoever sends: a program with a low limit of its own is not promised anything.
    if most > 1 || kind == "descriptors-in-flight" {
        super::raise_descriptors();
    }
    if let Ok(limit) = args.number(3, "a limit") {
        lower(&kind, limit)?;
    }
    let mut report = ProbeReport::default();
    let mut taker = taker(&kind)?;
    let (mut taken, mut result) = (0, Ok(()));
    while taken < most {
        match taker() {
            Ok(count) => taken += count,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    report.tried("take", result);
    report.fact("taken", taken);
    let another = || self::taker(&kind).map_err(|_| Errno::IO)?().map(drop);
    report.answered("another process", super::in_child(another));
    super::say_and_stay(&report, args.number(2, "milliseconds")?);
    drop(taker);
    Ok(report)
}

/// For the control: a separate limit, so that other processes of the machine are not affected.
fn lower(kind: &str, limit: u64) -> Result<(), ProbeError> {
    let knob = match kind {
        "inotify-instances" => "/proc/sys/user/max_inotify_instances",
        "inotify-watches" => "/proc/sys/user/max_inotify_watches",
        _ => "",
    };
    if !knob.is_empty() {
        return std::fs::write(knob, limit.to_string())
            .map_err(|error| ProbeError::Step(format!("write {knob}"), error));
    }
    let resource = match kind {
        "pending-signals" => Resource::Sigpending,
        "message-queues" => Resource::Msgqueue,
        "locked-memory" => Resource::Memlock,
        "descriptors-in-flight" => Resource::Nofile,
        _ => return Err(ProbeError::Argument("a counter that can be limited")),
    };
    let maximum = getrlimit(resource).maximum.map_or(limit, |hard| hard.min(limit));
    setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })
        .map_err(ProbeError::step("set the limit"))
}

fn taker(kind: &str) -> Result<Take, ProbeError> {
    Ok(match kind {
        "inotify-instances" => {
            let mut held = Vec::new();
            Box::new(move || {
                held.push(inotify::init(inotify::CreateFlags::CLOEXEC)?);
                Ok(1)
            })
        }
        "inotify-watches" => watches(),
        "pending-signals" => Box::new(|| take::timer().map(|()| 1)),
        "message-queues" => {
            let mut held = Vec::new();
            Box::new(move || {
                let name = format!("belljar-{}-{}", std::process::id(), held.len());
                let name = super::c_string(name).map_err(|_| Errno::INVAL)?;
                held.push(take::message_queue(&name)?);
                Ok(1)
            })
        }
        "locked-memory" => Box::new(|| take::locked_memory(PIECE).map(|()| PIECE as u64)),
        "descriptors-in-flight" => in_flight(),
        "epoll-watches" => epolls(),
        _ => return Err(ProbeError::Argument("something that is counted")),
    })
}

/// On files that are in memory only, by instance after instance: the same file counts for each.
fn watches() -> Take {
    const FILES: usize = 8000;
    let mut files: Vec<OwnedFd> = Vec::new();
    let mut instances: Vec<OwnedFd> = Vec::new();
    let mut next = FILES;
    Box::new(move || {
        if next == FILES {
            instances.push(inotify::init(inotify::CreateFlags::CLOEXEC)?);
            next = 0;
        }
        if next == files.len() {
            files.push(memfd_create(c"watched", MemfdFlags::CLOEXEC)?);
        }
        let (Some(instance), Some(file)) = (instances.last(), files.get(next)) else {
            return Err(Errno::IO);
        };
        next += 1;
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify::add_watch(instance, place, inotify::WatchFlags::MODIFY).map(|_| 1)
    })
}

/// Sent, and never received.
fn in_flight() -> Take {
    let mut held: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    let mut messages = 0_usize;
    Box::new(move || {
        if messages.is_multiple_of(64) {
            held.push(socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )?);
        }
        messages += 1;
        let Some((sender, _)) = held.last() else { return Err(Errno::IO) };
        let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let sent = [null.as_fd(); IN_A_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_A_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&sent));
        sendmsg(sender, &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL)?;
        Ok(IN_A_MESSAGE as u64)
    })
}

/// Every pair of an epoll and something to wait for counts.
fn epolls() -> Take {
    let mut targets: Vec<OwnedFd> = Vec::new();
    let mut pollers: Vec<OwnedFd> = Vec::new();
    let mut next = 0;
    Box::new(move || {
        if targets.is_empty() {
            for _ in 0..500 {
                let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
                targets.extend([read, write]);
            }
        }
        if next == 0 {
            pollers.push(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        let (Some(poller), Some(target)) = (pollers.last(), targets.get(next)) else {
            return Err(Errno::IO);
        };
        epoll::add(poller, target, epoll::EventData::new_u64(0), epoll::EventFlags::ERR)?;
        next = (next + 1) % targets.len();
        Ok(1)
    })
}
