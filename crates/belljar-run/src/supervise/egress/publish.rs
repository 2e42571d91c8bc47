//! Published ports: ports of the host that lead to servers inside.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_spec::Hint;
use belljar_spec::egress::{PublishSpec, Published};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, getsockname, listen, socket_with,
    sockopt,
};

const BACKLOG: i32 = 512;
const CLOSED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[error("port {port} inside cannot be published at {at}")]
pub struct PublishError {
    port: u16,
    at: SocketAddr,
    #[source]
    error: Errno,
}

impl PublishError {
    /// What to do next, where there is something.
    pub(crate) fn fix(&self) -> Option<String> {
        let port = self.port;
        match self.error {
            Errno::ADDRINUSE => Some(Hint::FreePort { port: port.to_string() }.into()),
            Errno::ACCESS => Some(Hint::HighPort.into()),
            Errno::ADDRNOTAVAIL => Some(Hint::OwnAddress.into()),
            _ => None,
        }
    }
}

/// One port of the host.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) published: Published,
    fd: OwnedFd,
}

/// All published ports of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    all: Vec<Port>,
    /// The one whose turn is next.
    next: usize,
    closed_until: Option<Instant>,
}

impl Ports {
    /// Connections wait from now on until they are accepted.
    pub(crate) fn open(wanted: &[PublishSpec]) -> Result<Self, PublishError> {
        let all = wanted.iter().map(Port::open).collect::<Result<_, _>>()?;
        Ok(Self { all, next: 0, closed_until: None })
    }

    pub(crate) fn published(&self) -> Vec<Published> {
        self.all.iter().map(|port| port.published).collect()
    }

    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.closed_until.is_none() {
            fds.extend(self.all.iter().map(|port| PollFd::new(&port.fd, PollFlags::IN)));
        }
    }

    /// When to accept again, after an error.
    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.closed_until
    }

    /// The next connection, and the port inside that it is for. Ports take turns: many connections to one do not
    /// delay those to another.
    pub(super) fn accept(&mut self) -> Option<(OwnedFd, u16)> {
        if self.closed_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.closed_until = None;
        let count = self.all.len();
        for at in (self.next..count).chain(0..self.next.min(count)) {
            let port = &self.all[at];
            loop {
                match accept_with(&port.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(connection) => {
                        self.next = (at + 1) % count;
                        return Some((connection, port.published.port));
                    }
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(Errno::AGAIN) => break,
                    // Out of descriptors: clients wait, and the loop must not spin.
                    Err(_) => {
                        self.closed_until = Some(Instant::now() + CLOSED_FOR);
                        return None;
                    }
                }
            }
        }
        None
    }
}

impl Port {
    fn open(wanted: &PublishSpec) -> Result<Self, PublishError> {
        let at = SocketAddr::from((wanted.address, wanted.host_port));
        let opened =
            Self::listen(at).map_err(|error| PublishError { port: wanted.port, at, error });
        let (fd, host_port) = opened?;
        let published = Published { address: wanted.address, host_port, port: wanted.port };
        Ok(Self { published, fd })
    }

    fn listen(at: SocketAddr) -> Result<(OwnedFd, u16), Errno> {
        let family = match at.ip() {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?; // a port of an earlier run is free at once
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?; // the given address, and no other
        }
        bind(&fd, &at)?;
        listen(&fd, BACKLOG)?;
        let name = SocketAddr::try_from(getsockname(&fd)?)?;
        Ok((fd, name.port()))
    }
}
