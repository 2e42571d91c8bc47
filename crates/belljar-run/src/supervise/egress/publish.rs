//! Ports of the host that lead to servers inside.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_spec::egress::{PublishSpec, Published};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, getsockname, listen, socket_with,
    sockopt,
};

const BACKLOG: i32 = 512;
const SHUT_FOR: Duration = Duration::from_secs(1);

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
            Errno::ADDRINUSE => {
                Some(format!("a free port of the host: -p {port}, and belljar port"))
            }
            Errno::ACCESS => Some("a port above 1023".to_owned()),
            Errno::ADDRNOTAVAIL => Some("an address that this host has".to_owned()),
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

/// All of a run's.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    all: Vec<Port>,
    /// Whose turn it is.
    next: usize,
    shut_until: Option<Instant>,
}

impl Ports {
    /// Whoever connects from now on waits until somebody accepts.
    pub(crate) fn open(wanted: &[PublishSpec]) -> Result<Self, PublishError> {
        let all = wanted.iter().map(Port::open).collect::<Result<_, _>>()?;
        Ok(Self { all, next: 0, shut_until: None })
    }

    pub(crate) fn published(&self) -> Vec<Published> {
        self.all.iter().map(|port| port.published).collect()
    }

    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.shut_until.is_none() {
            fds.extend(self.all.iter().map(|port| PollFd::new(&port.fd, PollFlags::IN)));
        }
    }

    /// When to look again, if nothing happens before.
    pub(super) fn shut_until(&self) -> Option<Instant> {
        self.shut_until
    }

    /// Somebody who wants to reach a port inside, and that port. Each has its turn: however many come to one, they
    /// keep nobody from another.
    pub(super) fn answer(&mut self) -> Option<(OwnedFd, u16)> {
        if self.shut_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.shut_until = None;
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
                    // No descriptor is to be had: whoever knocks waits, and the loop must not spin.
                    Err(_) => {
                        self.shut_until = Some(Instant::now() + SHUT_FOR);
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
        sockopt::set_socket_reuseaddr(&fd, true)?; // one that a run before had is free at once
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?; // the address that was said, and no other
        }
        bind(&fd, &at)?;
        listen(&fd, BACKLOG)?;
        let name = SocketAddr::try_from(getsockname(&fd)?)?;
        Ok((fd, name.port()))
    }
}
