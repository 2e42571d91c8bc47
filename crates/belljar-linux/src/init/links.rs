//! Links to the launcher that can break: each is a descriptor, received from whatever started PID 1.
//!
//! Whoever hands over links is not trusted with the channel: it can end a link or withhold the next one, and then
//! the lease ends everything. A link counts only after the launcher has proved itself on it with this launch's
//! key.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_spec::wire::{FrameKey, Nonce, ResumeKey, ResumeServer, Resumed};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::rand::{GetRandomFlags, getrandom};

/// What happened to the links.
pub(super) enum LinkEvent {
    Nothing,
    /// The launcher is back, over this link.
    Resumed {
        link: OwnedFd,
        resumed: Resumed,
    },
    /// No link will come any more.
    Over,
}

pub(super) struct Links {
    source: OwnedFd,
    key: Option<ResumeKey>,
    state: LinkState,
}

enum LinkState {
    Up,
    Broken,
    Resuming(Resuming),
}

/// A link on which the launcher has not proved itself yet.
struct Resuming {
    link: OwnedFd,
    server: ResumeServer,
    outgoing: Vec<u8>,
}

impl Links {
    /// Waits for the first link. The hello on it brings the key.
    pub(super) fn begin(source: OwnedFd) -> Result<(Self, OwnedFd), Errno> {
        let link = loop {
            match receive(source.as_fd())? {
                Received::Link(link) => break link,
                Received::Nothing => {}
                Received::End => return Err(Errno::PIPE),
            }
        };
        ioctl_fionbio(&source, true)?;
        Ok((Self { source, key: None, state: LinkState::Up }, link))
    }

    pub(super) fn set_key(&mut self, key: &FrameKey) {
        self.key = Some(ResumeKey::of(key));
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// The link ended. `false`: before the hello there is nothing that could be resumed.
    pub(super) fn broke(&mut self) -> bool {
        self.state = LinkState::Broken;
        self.key.is_some()
    }

    /// What to wait for while no link is up.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.state {
            LinkState::Up => None,
            LinkState::Broken => Some(PollFd::new(&self.source, PollFlags::IN)),
            LinkState::Resuming(resuming) => {
                let waits = match resuming.outgoing.is_empty() {
                    true => PollFlags::IN,
                    false => PollFlags::IN | PollFlags::OUT,
                };
                Some(PollFd::new(&resuming.link, waits))
            }
        }
    }

    /// Goes on while no link is up. `next` is the number of the next frame that is expected.
    pub(super) fn turn(&mut self, next: u64) -> Result<LinkEvent, Errno> {
        if matches!(self.state, LinkState::Broken) {
            let link = match receive(self.source.as_fd())? {
                Received::Link(link) => link,
                Received::Nothing => return Ok(LinkEvent::Nothing),
                Received::End => return Ok(LinkEvent::Over),
            };
            let Some(key) = &self.key else { return Ok(LinkEvent::Over) };
            ioctl_fionbio(&link, true)?;
            let server = ResumeServer::new(key, nonce()?, next);
            self.state = LinkState::Resuming(Resuming { link, server, outgoing: Vec::new() });
        }
        let LinkState::Resuming(resuming) = &mut self.state else { return Ok(LinkEvent::Nothing) };
        match resuming.turn() {
            Proof::Missing => Ok(LinkEvent::Nothing),
            // Whoever it was, it was not the launcher. The launcher may still come.
            Proof::Failed => {
                self.state = LinkState::Broken;
                Ok(LinkEvent::Nothing)
            }
            Proof::Shown(resumed) => match std::mem::replace(&mut self.state, LinkState::Up) {
                LinkState::Resuming(Resuming { link, .. }) => {
                    Ok(LinkEvent::Resumed { link, resumed })
                }
                LinkState::Up | LinkState::Broken => Ok(LinkEvent::Over),
            },
        }
    }
}

/// What is known about the other end of a new link.
enum Proof {
    Missing,
    Failed,
    Shown(Resumed),
}

impl Resuming {
    fn turn(&mut self) -> Proof {
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
            match self.server.push(&buffer[..length], &mut self.outgoing) {
                Ok(None) => {}
                Ok(Some(resumed)) => return Proof::Shown(resumed),
                Err(_) => return Proof::Failed,
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

enum Received {
    Link(OwnedFd),
    Nothing,
    End,
}

/// One byte comes with each descriptor.
fn receive(from: BorrowedFd<'_>) -> Result<Received, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let length = match recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) => received.bytes,
        Err(Errno::INTR | Errno::AGAIN) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error),
    };
    let mut links = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(links) => links.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    match (links.next(), length) {
        (Some(link), _) => Ok(Received::Link(link)),
        (None, 0) => Ok(Received::End),
        (None, _) => Ok(Received::Nothing),
    }
}

fn nonce() -> Result<Nonce, Errno> {
    let mut nonce = Nonce::default();
    match getrandom(&mut nonce, GetRandomFlags::empty())? == nonce.len() {
        true => Ok(nonce),
        false => Err(Errno::IO),
    }
}
