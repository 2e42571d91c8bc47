//! Opens sockets on a sandbox's loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// As long as a kernel makes it.
const BACKLOG: i32 = 4096;

/// Takes connections to this port. Never waits, and no program that is started has it.
pub fn listen_on(port: u16) -> Result<OwnedFd, Errno> {
    let socket = stream(AddressFamily::INET)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Where a server on loopback may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A connection that is made, or is about to be: see [`outcome`] once it can be written to.
pub(crate) fn begin_connect(family: Family, port: u16) -> Result<OwnedFd, Errno> {
    let (kind, address) = match family {
        Family::V4 => (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Family::V6 => (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
    };
    let socket = stream(kind)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// How a connection turned out.
pub(crate) fn outcome(socket: &OwnedFd) -> Result<(), Errno> {
    rustix::net::sockopt::socket_error(socket)?
}

fn stream(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None)
}
