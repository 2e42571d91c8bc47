//! The proxy, as its supervisor has it: a process, and the socket between them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_egress::control::{ControlError, FromProxy, Setup, ToProxy, Trust, receive, send};
use belljar_spec::egress::EgressEvent;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::process::{ARGUMENT, OWN_AUTHORITIES};
use crate::supervise::readiness::wait_until;

/// From its start to its first word; on a machine under heavy load too.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Before the loop looks at everything else again.
const NEWS_AT_ONCE: usize = 64;
/// What it said when it died, as much as is of use.
const LAST_WORDS: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("the proxy cannot be started")]
    Start(#[source] std::io::Error),
    #[error("the proxy cannot be told what is allowed")]
    Tell(#[source] ControlError),
    #[error("the proxy does not take its settings: {0}")]
    Settings(String),
    #[error("the proxy ended before it was ready{0}")]
    Ended(String),
    #[error("the proxy was not ready within {0} seconds")]
    Silent(u64),
    #[error("the run's own list of authorities cannot be written")]
    Trust(#[source] std::io::Error),
}

/// What the proxy had to say.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) news: Vec<EgressEvent>,
    /// Why it is gone, if it is.
    pub(super) gone: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    control: OwnedFd,
    /// Its standard error. Whoever writes to it never waits for us: what does not fit is lost.
    words: OwnedFd,
    /// Not yet taken by the socket. No more than there are connections.
    waiting: VecDeque<Waiting>,
    early: Vec<EgressEvent>,
    readiness: Readiness,
}

#[derive(Debug)]
struct Waiting {
    what: ToProxy,
    socket: OwnedFd,
    /// That of a connection.
    stream: Option<u32>,
}

/// Why the set-up's door could not be shut. The proxy is to be ended.
#[derive(Debug)]
pub(super) struct NotNarrowed(pub(super) String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    ToSay,
    Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Awaited,
    Told,
}

impl Proxy {
    /// Starts it, and tells it what is allowed; it makes itself ready meanwhile.
    pub(crate) fn start(setup: Setup) -> Result<Self, EgressError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("belljar")
            .arg(ARGUMENT)
            .env_clear()
            .envs(OWN_AUTHORITIES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdout(Stdio::null());
        if let Some((setting, file)) = crate::debug_log::for_proxy() {
            command.env(belljar_spec::env::LOG, setting).stdout(file);
        }
        Self::start_as(command, setup)
    }

    pub(super) fn start_as(mut command: Command, setup: Setup) -> Result<Self, EgressError> {
        let failed = |error: Errno| EgressError::Start(error.into());
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let (words, stderr) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
        command.stdin(theirs).stderr(stderr).process_group(0); // ^C at the caller's terminal is not meant for it
        let child = command.spawn().map_err(EgressError::Start)?;
        drop(command); // and with it the other ends
        Self::with(child, control, words, setup)
    }

    pub(super) fn with(
        child: Child,
        control: OwnedFd,
        words: OwnedFd,
        setup: Setup,
    ) -> Result<Self, EgressError> {
        let failed = |error: Errno| EgressError::Start(error.into());
        let (waiting, early, readiness) = (VecDeque::new(), Vec::new(), Readiness::Awaited);
        let proxy = Self { child, control, words, waiting, early, readiness };
        // From here on an error ends it, when it is dropped.
        rustix::io::ioctl_fionbio(&proxy.control, true).map_err(failed)?;
        send(proxy.control.as_fd(), &ToProxy::Setup(Box::new(setup)), None)
            .map_err(EgressError::Tell)?;
        Ok(proxy)
    }

    /// Waits until it has understood. The answer is the public part of its authority, if it made one.
    pub(crate) fn wait_until_ready(&mut self) -> Result<Option<Trust>, EgressError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::Ready { trust }, _))) => {
                    self.readiness = Readiness::Told;
                    return Ok(trust);
                }
                Ok(Some((FromProxy::Failed { why }, _))) => return Err(EgressError::Settings(why)),
                Ok(Some((FromProxy::News(news), _))) => self.early.push(news),
                Err(ControlError::Io(Errno::AGAIN)) => {}
                Ok(None | Some((FromProxy::Narrowed { .. }, _))) | Err(_) => {
                    return Err(EgressError::Ended(self.last_words()));
                }
            }
            if Instant::now() >= until {
                return Err(EgressError::Silent(READY_WITHIN.as_secs()));
            }
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            let _ = wait_until(&mut fds, Some(until)); // an error comes back from the read
        }
    }

    /// Tells it that the set-up is over, and waits until it has shut the set-up's door. What it has not taken yet was
    /// for the set-up, and is closed. The answer is how many connections it closed.
    pub(super) fn narrow(&mut self, within: Duration) -> Result<u64, NotNarrowed> {
        let until = Instant::now() + within;
        self.waiting.retain(|waiting| waiting.stream.is_none());
        let mut word = Word::ToSay;
        loop {
            self.flush();
            if word == Word::ToSay && self.waiting.is_empty() {
                match send(self.control.as_fd(), &ToProxy::Narrow, None) {
                    Ok(()) => word = Word::Said,
                    Err(ControlError::Io(Errno::AGAIN)) => {}
                    // One that is gone is found by the next read.
                    Err(_) => word = Word::Said,
                }
            }
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::Narrowed { closed }, _))) if word == Word::Said => {
                    return Ok(closed);
                }
                Ok(Some((FromProxy::News(news), _))) => {
                    self.early.push(news);
                    continue;
                }
                Ok(Some((FromProxy::Ready { .. }, _))) if self.is_awaited() => {
                    self.readiness = Readiness::Told;
                    continue;
                }
                Ok(Some(_)) => return Err(NotNarrowed("it spoke out of turn".to_owned())),
                Err(ControlError::Io(Errno::AGAIN)) => {}
                Ok(None) | Err(_) => {
                    let words = self.last_words();
                    return Err(NotNarrowed(words.trim_start_matches(": ").to_owned()));
                }
            }
            if Instant::now() >= until {
                let why =
                    format!("it did not shut the set-up's door within {} s", within.as_secs());
                return Err(NotNarrowed(why));
            }
            let events = match word {
                Word::ToSay => PollFlags::IN | PollFlags::OUT,
                Word::Said => PollFlags::IN,
            };
            let mut fds = [PollFd::new(&self.control, events)];
            let _ = wait_until(&mut fds, Some(until)); // an error comes back from the read
        }
    }

    /// What it told while something else was waited for.
    pub(super) fn take_early(&mut self) -> Vec<EgressEvent> {
        std::mem::take(&mut self.early)
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// It has not said yet that it is ready.
    pub(crate) fn is_awaited(&self) -> bool {
        self.readiness == Readiness::Awaited
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let waits = !self.waiting.is_empty();
        let events = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.control, events)
    }

    /// Gives it a socket, as soon as it takes one.
    pub(super) fn hand_over(&mut self, what: ToProxy, socket: OwnedFd) {
        self.waiting.push_back(Waiting { what, socket, stream: None });
        self.flush();
    }

    pub(super) fn hand_over_connection(&mut self, stream: u32, port: u16, socket: OwnedFd) {
        let what = ToProxy::Connection { port };
        self.waiting.push_back(Waiting { what, socket, stream: Some(stream) });
        self.flush();
    }

    /// How many sockets it has not taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Of connections that were over before it took them, it need not hear.
    pub(super) fn keep_waiting(&mut self, is_there: impl Fn(u32) -> bool) {
        self.waiting.retain(|waiting| waiting.stream.is_none_or(&is_there));
    }

    fn flush(&mut self) {
        while let Some(Waiting { what, socket, .. }) = self.waiting.front() {
            match send(self.control.as_fd(), what, Some(socket.as_fd())) {
                Err(ControlError::Io(Errno::AGAIN)) => return,
                // One that is gone is found by the next read; what it was to have is closed.
                Ok(()) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
    }

    pub(super) fn hear(&mut self) -> Heard {
        self.flush();
        let mut heard = Heard { news: self.take_early(), gone: None };
        for _ in 0..NEWS_AT_ONCE {
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::News(news), _))) => heard.news.push(news),
                Err(ControlError::Io(Errno::AGAIN)) => break,
                Ok(Some(_)) => {
                    heard.gone = Some("it spoke out of turn".to_owned());
                    break;
                }
                Err(ControlError::BadPacket(why)) => {
                    heard.gone = Some(why);
                    break;
                }
                Ok(None) | Err(_) => {
                    heard.gone = Some(self.last_words().trim_start_matches(": ").to_owned());
                    break;
                }
            }
        }
        heard
    }

    /// The run is over: it closes what it carries, tells the rest, and ends.
    pub(super) fn dismiss(&mut self) {
        self.waiting.clear();
        let _ = shutdown(&self.control, Shutdown::Write); // one that is gone needs no word
    }

    /// What it still tells after it was dismissed.
    pub(super) fn hear_the_rest(&mut self, within: Duration) -> Vec<EgressEvent> {
        let until = Instant::now() + within;
        let mut all = Vec::new();
        loop {
            let Heard { news, gone } = self.hear();
            all.extend(news);
            if gone.is_some() || Instant::now() >= until {
                return all;
            }
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            if wait_until(&mut fds, Some(until)).is_err() {
                return all;
            }
        }
    }

    /// What it wrote to its standard error, and how it ended.
    fn last_words(&mut self) -> String {
        let _ = self.child.kill(); // its socket is closed, so it is of no more use
        let mut words = String::new();
        if let Ok(status) = self.child.wait() {
            words.push_str(&format!(": {status}"));
        }
        let mut said = [0; LAST_WORDS];
        let length = rustix::io::read(&self.words, &mut said).unwrap_or(0); // it may have said nothing
        let said = &said[..length];
        let said = belljar_spec::text::escape(said.trim_ascii());
        if !said.is_empty() {
            words.push_str(&format!(": {said}"));
        }
        words
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its own child, unreaped or reaped here before: the number is nobody else's.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
