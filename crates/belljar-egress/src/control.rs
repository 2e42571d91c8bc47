//! Messages between a run's supervisor and its proxy: packets, some of which carry a descriptor.
//!
//! The socket is `SOCK_SEQPACKET`, created by the supervisor; the proxy gets its end as standard input. The proxy
//! exits when either end is closed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_spec::egress::{EgressEvent, EgressPolicy, SecretValue};
use belljar_spec::network_list::NetworkList;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The longest packet. A policy has to fit into one.
pub const MAX_PACKET: usize = 128 * 1024;

/// Messages from the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToProxy {
    /// The first packet.
    Setup(Box<Setup>),
    /// Carries a listening socket of the sandbox's network; `port` is its port there.
    Listener { port: u16 },
    /// Carries a connected stream: a client in the sandbox connected to this port.
    Connection { port: u16 },
    /// The set-up phase is over: its connections are closed, and the run's policy applies from here on.
    Narrow,
    /// The operator changed the list: it holds for everything, also what is open now. The answer is
    /// [`FromProxy::ListChanged`].
    ChangeList(Box<NetworkList>),
    /// A new value for a secret of the set-up message, from the next request on.
    Secret(SecretValue),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub policy: EgressPolicy,
    pub secrets: Vec<SecretValue>,
}

/// Messages from the proxy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromProxy {
    /// The set-up message is valid, and the proxy accepts connections.
    Ready {
        trust: Option<Trust>,
    },
    /// The set-up message is not valid, and the proxy exits.
    Failed {
        why: String,
    },
    Event(EgressEvent),
    /// The set-up phase is closed, and with it this many connections from the sandbox.
    Narrowed {
        closed: u64,
    },
    /// The changed list is in force, and this many connections and requests were closed.
    ListChanged {
        closed: u64,
    },
}

/// The public part of the run's certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// The CA certificate, as PEM.
    pub ca_certificate: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("a packet of {0} bytes is longer than {MAX_PACKET}")]
    TooLong(usize),
    #[error("a packet is not valid: {0}")]
    BadPacket(String),
    #[error(transparent)]
    Io(#[from] Errno),
}

/// Sends one packet, with at most one descriptor.
pub fn send<M: Serialize>(
    to: BorrowedFd<'_>,
    message: &M,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), ControlError> {
    // The message may contain secrets.
    let text =
        serde_json::to_vec(message).map_err(|error| ControlError::BadPacket(error.to_string()))?;
    let text = Zeroizing::new(text);
    if text.len() > MAX_PACKET {
        return Err(ControlError::TooLong(text.len()));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(ControlError::Io(Errno::NOBUFS));
    }
    loop {
        let flags = SendFlags::NOSIGNAL;
        match sendmsg(to, &[IoSlice::new(&text)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives the next packet; `None` when the other end is closed. On a non-blocking socket an empty queue is
/// `Io(AGAIN)`.
pub fn receive<M: DeserializeOwned>(
    from: impl AsFd,
) -> Result<Option<(M, Option<OwnedFd>)>, ControlError> {
    let from = from.as_fd();
    let Some(length) = next_length(from)? else { return Ok(None) };
    let mut packet = Zeroizing::new(vec![0; length.min(MAX_PACKET)]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut packet)];
        match recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(ControlError::TooLong(length));
    }
    let message = serde_json::from_slice(&packet[..received.bytes])
        .map_err(|error| ControlError::BadPacket(error.to_string()))?;
    Ok(Some((message, descriptor)))
}

/// Most packets are small and a policy is large, so the length is read before the buffer is allocated.
fn next_length(from: BorrowedFd<'_>) -> Result<Option<usize>, ControlError> {
    loop {
        let mut nothing = [0; 1];
        match recv(from, &mut nothing, RecvFlags::PEEK | RecvFlags::TRUNC) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((_, length)) => return Ok(Some(length)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_packet_arrives_with_its_descriptor_and_the_close_is_seen() {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(one.as_fd(), &ToProxy::Connection { port: 7 }, Some(write.as_fd())).unwrap();
        drop(write);
        let (message, descriptor) = receive::<ToProxy>(&other).unwrap().unwrap();
        assert!(matches!(message, ToProxy::Connection { port: 7 }));
        rustix::io::write(descriptor.unwrap(), b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 2]).unwrap(), 1);
        let long = vec![b'1'; MAX_PACKET + 1];
        rustix::net::send(&one, &long, SendFlags::empty()).unwrap();
        let refused = receive::<ToProxy>(&other);
        assert!(matches!(refused, Err(ControlError::TooLong(length)) if length == long.len()));
        rustix::io::ioctl_fionbio(&other, true).unwrap();
        let nothing = receive::<ToProxy>(&other);
        assert!(matches!(nothing, Err(ControlError::Io(Errno::AGAIN))));
        drop(one);
        assert!(receive::<ToProxy>(&other).unwrap().is_none());
    }
}
