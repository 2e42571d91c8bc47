//! Opens a new link to PID 1 when the one under the channel breaks, and proves on it that both ends are who they were.
//!
//! Only for backends whose link can break. Until PID 1 has sent its hello it does not know the key, and until its lease
//! ends it waits: before and after that a broken link is the end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_backend::LinkOpener;
use belljar_spec::wire::{FrameKey, Nonce, ResumeClient, ResumeKey, Resumed};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// For the other end of a new link to prove itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What happened to the link.
pub(super) enum LinkEvent {
    Nothing,
    /// PID 1 is there, over this link.
    Resumed {
        link: OwnedFd,
        resumed: Resumed,
    },
    /// PID 1's lease has ended, or it never had the key.
    Over,
}

#[derive(Debug)]
pub(super) struct Reconnect {
    opener: Box<dyn LinkOpener>,
    key: ResumeKey,
    lease: Duration,
    /// PID 1 has the key.
    greeted: bool,
    state: LinkState,
}

#[derive(Debug)]
enum LinkState {
    Up,
    Broken { since: Instant, try_at: Instant },
    Resuming(Resuming),
}

#[derive(Debug)]
struct Resuming {
    since: Instant,
    until: Instant,
    link: OwnedFd,
    client: ResumeClient,
    outgoing: Vec<u8>,
}

impl Reconnect {
    pub(super) fn new(opener: Box<dyn LinkOpener>, key: &FrameKey, lease: Duration) -> Self {
        let (key, state) = (ResumeKey::of(key), LinkState::Up);
        Self { opener, key, lease, greeted: false, state }
    }

    /// PID 1 has sent its hello.
    pub(super) fn greeted(&mut self) {
        self.greeted = true;
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// The link ended. `false`: for good.
    pub(super) fn broke(&mut self, now: Instant) -> bool {
        tracing::debug!(resumable = self.greeted, "the link to the sandbox broke");
        self.state = LinkState::Broken { since: now, try_at: now };
        self.greeted
    }

    /// What to wait for while no link is up.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.state {
            LinkState::Up | LinkState::Broken { .. } => None,
            LinkState::Resuming(resuming) => {
                let waits = match resuming.outgoing.is_empty() {
                    true => PollFlags::IN,
                    false => PollFlags::IN | PollFlags::OUT,
                };
                Some(PollFd::new(&resuming.link, waits))
            }
        }
    }

    pub(super) fn next_moment(&self) -> Option<Instant> {
        match &self.state {
            LinkState::Up => None,
            LinkState::Broken { since, try_at } => Some((*try_at).min(*since + self.lease)),
            LinkState::Resuming(Resuming { since, until, .. }) => {
                Some((*until).min(*since + self.lease))
            }
        }
    }

    /// Goes on while no link is up. `next` is the number of the next frame that is expected.
    pub(super) fn turn(&mut self, now: Instant, next: u64) -> LinkEvent {
        let since = match &self.state {
            LinkState::Up => return LinkEvent::Nothing,
            LinkState::Broken { since, .. } => *since,
            LinkState::Resuming(resuming) => resuming.since,
        };
        if !self.greeted || now >= since + self.lease {
            return LinkEvent::Over;
        }
        if let LinkState::Broken { try_at, .. } = self.state
            && now >= try_at
        {
            self.state = match self.open(since, now, next) {
                Some(resuming) => LinkState::Resuming(resuming),
                None => LinkState::Broken { since, try_at: now + PAUSE },
            };
        }
        let LinkState::Resuming(resuming) = &mut self.state else { return LinkEvent::Nothing };
        match resuming.turn(now) {
            Proof::Missing => LinkEvent::Nothing,
            Proof::Failed => {
                self.state = LinkState::Broken { since, try_at: now + PAUSE };
                LinkEvent::Nothing
            }
            Proof::Shown(resumed) => match std::mem::replace(&mut self.state, LinkState::Up) {
                LinkState::Resuming(Resuming { link, .. }) => {
                    tracing::debug!(after = ?now.duration_since(since), "the channel goes on");
                    LinkEvent::Resumed { link, resumed }
                }
                LinkState::Up | LinkState::Broken { .. } => LinkEvent::Over,
            },
        }
    }

    fn open(&mut self, since: Instant, now: Instant, next: u64) -> Option<Resuming> {
        let link = match self.opener.open() {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(%error, "no new link to the sandbox yet");
                return None;
            }
        };
        rustix::io::ioctl_fionbio(&link, true).ok()?;
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).ok()?;
        let mut outgoing = Vec::new();
        let client = ResumeClient::begin(&self.key, nonce, next, &mut outgoing);
        Some(Resuming { since, until: now + ANSWER_TIMEOUT, link, client, outgoing })
    }
}

/// What is known about the other end of a new link.
enum Proof {
    Missing,
    Failed,
    Shown(Resumed),
}

impl Resuming {
    fn turn(&mut self, now: Instant) -> Proof {
        if now >= self.until {
            return Proof::Failed;
        }
        let mut buffer = [0; 4096];
        loop {
            if !self.flush() {
                return Proof::Failed;
            }
            let length = match rustix::io::read(&self.link, &mut buffer) {
                Ok(0) => return Proof::Failed,
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Proof::Missing,
                Err(_) => return Proof::Failed,
            };
            match self.client.push(&buffer[..length], &mut self.outgoing) {
                Ok(None) => {}
                // The confirmation is short, and nothing was sent on this link but the challenge.
                Ok(Some(resumed)) if self.flush() && self.outgoing.is_empty() => {
                    return Proof::Shown(resumed);
                }
                Ok(Some(_)) | Err(_) => return Proof::Failed,
            }
        }
    }

    /// `false`: the link is gone.
    fn flush(&mut self) -> bool {
        while !self.outgoing.is_empty() {
            match rustix::io::write(&self.link, &self.outgoing) {
                Ok(length) => drop(self.outgoing.drain(..length)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
