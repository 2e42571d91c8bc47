//! Who is served now, the set-up or the run, and the doors by which both come.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::egress::Via;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tokio::net::TcpListener;

use crate::http::refusal_response::refused_unread;
use crate::inbound::sniff_protocol;
use crate::io::stream::Stream;
use crate::proxy::Proxy;
use crate::upstream::tls::Tls;

/// Before accepting is tried again, when there is no descriptor left.
const BREATH: Duration = Duration::from_millis(50);
/// As many as a kernel keeps waiting at one door. Whoever comes later is not of before.
const MOST_WAITING: u64 = 4096;

/// One policy, and what belongs to it.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) tls: Arc<Tls>,
}

impl Stage {
    /// A task for each, as long as there may be one more.
    pub(crate) fn admit(&self, stream: Stream, port: u16) {
        match self.proxy.enter(Via::Http) {
            Ok(presence) => {
                let Self { proxy, tls } = self.clone();
                tokio::spawn(async move {
                    sniff_protocol::serve(proxy, tls, stream, port).await;
                    drop(presence);
                });
            }
            Err(refusal) => {
                let _ = stream.try_write(refused_unread(&refusal).as_bytes()); // its end says the same
            }
        }
    }
}

/// Listening sockets of the sandbox's network, which outlast a stage.
#[derive(Default)]
pub(crate) struct Doors(Vec<(u16, OwnedFd)>);

impl Doors {
    pub(crate) fn add(&mut self, port: u16, socket: OwnedFd, stage: &Stage) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        open(port, &socket, stage)?;
        self.0.push((port, socket));
        Ok(())
    }

    /// For a stage that comes after another.
    pub(crate) fn open_for(&self, stage: &Stage) -> io::Result<()> {
        self.0.iter().try_for_each(|(port, socket)| open(*port, socket, stage))
    }

    /// Closes what waits to be accepted. The answer is how many those were.
    pub(crate) fn clear(&self) -> u64 {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut closed = 0;
        for (_, socket) in &self.0 {
            for _ in 0..MOST_WAITING {
                match accept_with(socket, flags) {
                    Ok(_) => closed += 1,
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(_) => break,
                }
            }
        }
        closed
    }
}

fn open(port: u16, socket: &OwnedFd, stage: &Stage) -> io::Result<()> {
    let listener = TcpListener::from_std(socket.try_clone()?.into())?;
    tokio::spawn(accept(listener, stage.clone(), port));
    Ok(())
}

async fn accept(listener: TcpListener, stage: Stage, port: u16) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true); // one that is gone already is found out later
                stage.admit(Stream::Tcp(stream), port);
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}
