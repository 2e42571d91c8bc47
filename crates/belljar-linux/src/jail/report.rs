//! Reports of the set-up to the launcher, one packet each, with the descriptors that it passes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::start::StartError;

/// Listening sockets of one sandbox; fewer than a kernel takes in one packet.
pub const MAX_LISTENERS: usize = 128;

const FAILED: &str = "failed ";
const REFUSED: &str = "refused ";

pub(crate) enum Report {
    Sandbox {
        pid: i32,
        /// In the order of the plan's ports.
        listeners: Vec<OwnedFd>,
    },
    Failed {
        why: String,
        blame: Blame,
    },
}

/// What a failed set-up is due to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// What the run asks for: it fails everywhere.
    Run,
    SetUp,
}

impl Report {
    pub(crate) fn send(&self, to: BorrowedFd<'_>) {
        let (text, listeners) = match self {
            Self::Sandbox { pid, listeners } => (format!("pid {pid}"), listeners.as_slice()),
            Self::Failed { why, blame } => {
                let why = why.chars().take(4000).collect::<String>();
                let prefix = match blame {
                    Blame::Run => REFUSED,
                    Blame::SetUp => FAILED,
                };
                (format!("{prefix}{why}"), [].as_slice())
            }
        };
        let listeners: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !listeners.is_empty() {
            // More than fit are not sent, and are missed at the other end.
            ancillary.push(SendAncillaryMessage::ScmRights(&listeners));
        }
        let parts = [IoSlice::new(text.as_bytes())];
        // A failure here cannot be reported; the launcher sees the end of the process.
        let _ = sendmsg(to, &parts, &mut ancillary, SendFlags::NOSIGNAL);
    }

    pub(crate) fn receive(from: BorrowedFd<'_>) -> Result<Self, StartError> {
        let mut packet = vec![0; 20 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let length = loop {
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other.map_or(0, |received| received.bytes),
            }
        };
        let mut listeners = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                listeners.extend(descriptors);
            }
        }
        let text = String::from_utf8_lossy(&packet[..length]).into_owned();
        if let Some(pid) = text.strip_prefix("pid ") {
            let pid = pid.parse().map_err(|_| StartError::Ended)?;
            return Ok(Self::Sandbox { pid, listeners });
        }
        let failed = |prefix, blame| {
            text.strip_prefix(prefix).map(|why| Self::Failed { why: why.to_owned(), blame })
        };
        let failed = failed(FAILED, Blame::SetUp).or_else(|| failed(REFUSED, Blame::Run));
        failed.ok_or(StartError::Ended)
    }
}
