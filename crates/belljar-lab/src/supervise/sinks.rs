//! Carries the command's streams between the sandbox's pipes and the caller, never blocking and never
//! holding more than a little.

use std::os::fd::{AsFd, OwnedFd};

use belljar_backend::Started;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::capture::HeadAndTail;
use super::channel::Channel;
use crate::run::{Captured, Output, Streams};

const CHUNK: usize = 64 * 1024;

/// One output stream on its way out.
struct Outlet {
    /// The sandbox's pipe; `None` when it has ended.
    from: Option<OwnedFd>,
    to: Target,
    waiting: Vec<u8>,
}

enum Target {
    Fd {
        fd: OwnedFd,
        at_once: usize,
    },
    Kept(HeadAndTail),
    /// The caller's end is closed.
    Closed,
}

/// Standard input on its way in.
struct Inlet {
    from: Option<OwnedFd>,
    to: Into,
    waiting: Vec<u8>,
}

enum Into {
    Pipe(Option<OwnedFd>),
    Terminal,
}

pub(super) struct Sinks {
    stdout: Outlet,
    stderr: Outlet,
    input: Option<Inlet>,
}

impl Sinks {
    pub(super) fn new(started: &mut Started, streams: Streams, keep: u64) -> Self {
        let (to_stdout, to_stderr) = match streams.output {
            Output::Passed { stdout, stderr } => (Target::fd(stdout), Target::fd(stderr)),
            Output::Captured => {
                (Target::Kept(HeadAndTail::new(keep)), Target::Kept(HeadAndTail::new(keep)))
            }
        };
        let has_terminal = streams.terminal.is_some();
        let input = streams.stdin.map(|from| {
            let to = if has_terminal { Into::Terminal } else { Into::Pipe(started.stdin.take()) };
            if let Into::Pipe(Some(pipe)) = &to {
                let _ = rustix::io::ioctl_fionbio(pipe, true);
            }
            Inlet { from: Some(from), to, waiting: Vec::new() }
        });
        started.stdin = None; // without input, the command reads an end
        Self {
            stdout: Outlet::new(started.stdout.take(), to_stdout),
            stderr: Outlet::new(started.stderr.take(), to_stderr),
            input,
        }
    }

    /// Nothing more will come out, and all that came has been passed on.
    pub(super) fn are_empty(&self) -> bool {
        self.stdout.is_done() && self.stderr.is_done()
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    pub(super) fn watch<'a>(&'a self, channel: Option<&Channel>, fds: &mut Vec<PollFd<'a>>) {
        for outlet in [&self.stdout, &self.stderr] {
            match (&outlet.from, &outlet.to) {
                (_, Target::Fd { fd, .. }) if !outlet.waiting.is_empty() => {
                    fds.push(PollFd::new(fd, PollFlags::OUT));
                }
                (Some(from), _) => fds.push(PollFd::new(from, PollFlags::IN)),
                _ => {}
            }
        }
        let Some(input) = &self.input else { return };
        match (&input.from, &input.to) {
            (_, Into::Pipe(Some(pipe))) if !input.waiting.is_empty() => {
                fds.push(PollFd::new(pipe, PollFlags::OUT));
            }
            (Some(from), Into::Pipe(Some(_))) => fds.push(PollFd::new(from, PollFlags::IN)),
            (Some(from), Into::Terminal)
                if channel.is_some_and(|channel| channel.terminal_room() > 0) =>
            {
                fds.push(PollFd::new(from, PollFlags::IN));
            }
            _ => {}
        }
    }

    /// Only a command behind a boundary has a channel.
    /// `true`: the command said something.
    pub(super) fn move_bytes(&mut self, mut channel: Option<&mut Channel>) -> bool {
        self.stdout.pass_on(channel.as_deref_mut());
        self.stderr.pass_on(None);
        let said = self.stdout.take_in() + self.stderr.take_in();
        if let Some(input) = &mut self.input {
            input.move_bytes(channel);
        }
        said > 0
    }

    /// The command is over, but something on the host may hold its streams open: what is there now is
    /// taken, and no more waited for.
    pub(super) fn stop_reading(&mut self) {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            outlet.take_in();
            if outlet.waiting.is_empty() {
                outlet.from = None;
            }
        }
    }

    pub(super) fn terminal_output(&mut self, bytes: &[u8]) {
        self.stdout.accept(bytes);
    }

    pub(super) fn captured(self) -> (Captured, Captured) {
        (self.stdout.captured(), self.stderr.captured())
    }
}

impl Target {
    fn fd(fd: OwnedFd) -> Self {
        // A pipe that polls writable takes this much without blocking; a file takes anything.
        const PIPE_BUF: usize = 4096;
        let is_file = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let at_once = if is_file { CHUNK } else { PIPE_BUF };
        Self::Fd { fd, at_once }
    }
}

impl Outlet {
    fn new(from: Option<OwnedFd>, to: Target) -> Self {
        if let Some(from) = &from {
            let _ = rustix::io::ioctl_fionbio(from, true);
        }
        Self { from, to, waiting: Vec::new() }
    }

    fn is_done(&self) -> bool {
        self.from.is_none() && self.waiting.is_empty()
    }

    /// Reads only when everything before has been passed on.
    fn take_in(&mut self) -> usize {
        let mut buffer = [0; CHUNK];
        let mut taken = 0;
        while self.waiting.is_empty() {
            let Some(from) = &self.from else { break };
            match rustix::io::read(from, &mut buffer) {
                Ok(0) => self.from = None,
                Ok(length) => {
                    taken += length;
                    self.accept(&buffer[..length]);
                    self.pass_on(None);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.from = None,
            }
        }
        taken
    }

    fn accept(&mut self, bytes: &[u8]) {
        match &mut self.to {
            Target::Fd { .. } => self.waiting.extend_from_slice(bytes),
            Target::Kept(kept) => kept.keep(bytes),
            Target::Closed => {}
        }
    }

    fn pass_on(&mut self, mut shown_to: Option<&mut Channel>) {
        let mut written = 0;
        while written < self.waiting.len() {
            let Target::Fd { fd, at_once } = &self.to else {
                break;
            };
            if !is_writable(fd) {
                break;
            }
            let end = self.waiting.len().min(written + at_once);
            match rustix::io::write(fd, &self.waiting[written..end]) {
                Ok(length) => {
                    written += length;
                    if let Some(channel) = &mut shown_to {
                        channel.shown(length);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // As when `| head` has had enough: the command is told the same way.
                    self.to = Target::Closed;
                    self.from = None;
                }
            }
        }
        self.waiting.drain(..written);
        if matches!(self.to, Target::Closed) {
            self.waiting.clear();
        }
    }

    fn captured(self) -> Captured {
        match self.to {
            Target::Kept(kept) => kept.captured(),
            Target::Fd { .. } | Target::Closed => Captured::default(),
        }
    }
}

impl Inlet {
    fn move_bytes(&mut self, mut channel: Option<&mut Channel>) {
        self.deliver(channel.as_deref_mut());
        let room = match &self.to {
            Into::Pipe(Some(_)) if self.waiting.is_empty() => CHUNK,
            Into::Pipe(_) => 0,
            Into::Terminal => channel.as_deref().map_or(0, Channel::terminal_room).min(CHUNK),
        };
        let Some(from) = &self.from else { return };
        if room == 0 || !is_readable(from) {
            return;
        }
        let mut buffer = [0; CHUNK];
        match rustix::io::read(from, &mut buffer[..room]) {
            Ok(0) => self.end(channel),
            Ok(length) => {
                self.waiting.extend_from_slice(&buffer[..length]);
                self.deliver(channel);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.end(channel),
        }
    }

    fn deliver(&mut self, mut channel: Option<&mut Channel>) {
        while !self.waiting.is_empty() {
            let taken = match &mut self.to {
                Into::Terminal => {
                    channel.as_deref_mut().map_or(0, |channel| channel.type_in(&self.waiting))
                }
                Into::Pipe(pipe) => {
                    match pipe.as_ref().map(|pipe| rustix::io::write(pipe, &self.waiting)) {
                        Some(Ok(length)) => length,
                        Some(Err(Errno::AGAIN)) => 0,
                        Some(Err(Errno::INTR)) => continue,
                        // The command reads no more: what is left goes nowhere.
                        Some(Err(_)) | None => {
                            *pipe = None;
                            self.waiting.len()
                        }
                    }
                }
            };
            if taken == 0 {
                return;
            }
            self.waiting.drain(..taken);
        }
        if self.from.is_none()
            && let Into::Pipe(pipe) = &mut self.to
        {
            *pipe = None; // the command reads an end
        }
    }

    fn end(&mut self, mut channel: Option<&mut Channel>) {
        self.from = None;
        if let (Into::Terminal, Some(channel)) = (&self.to, channel.as_deref_mut()) {
            channel.end_typing();
        }
        self.deliver(channel);
    }
}

fn is_writable(fd: &OwnedFd) -> bool {
    ready(fd, PollFlags::OUT)
}

pub(super) fn is_readable(fd: &OwnedFd) -> bool {
    ready(fd, PollFlags::IN)
}

/// An error or a hang-up counts: the call itself then tells.
fn ready(fd: &OwnedFd, what: PollFlags) -> bool {
    let fd = fd.as_fd();
    let mut fds = [PollFd::new(&fd, what)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
}
