//! Accepts connections for the current phase of a run: its set-up, or the run itself.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::egress::Via;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tokio::net::TcpListener;

use crate::http::refusal_response::refusal_bytes;
use crate::inbound::sniff_protocol;
use crate::io::stream::Stream;
use crate::proxy::Proxy;
use crate::upstream::tls::TlsContext;

/// Before the next accept, when no descriptor is left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// As many as the kernel queues on one listener. Connections beyond it arrived after the phase ended.
const MAX_BACKLOG: u64 = 4096;

/// One phase: its policy and TLS state.
#[derive(Clone)]
pub(crate) struct Phase {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) tls: Arc<TlsContext>,
}

impl Phase {
    /// Serves the connection in a new task, if the connection budget allows one more.
    pub(crate) fn spawn_connection(&self, stream: Stream, port: u16) {
        match self.proxy.open_connection(Via::Http) {
            Ok(guard) => {
                let Self { proxy, tls } = self.clone();
                tokio::spawn(async move {
                    sniff_protocol::serve(proxy, tls, stream, port).await;
                    drop(guard);
                });
            }
            Err(refusal) => {
                // If this fails, the client still sees the close.
                let _ = stream.try_write(refusal_bytes(&refusal).as_bytes());
            }
        }
    }
}

/// Listening sockets of the sandbox's network, which stay open across phases.
#[derive(Default)]
pub(crate) struct Listeners(Vec<(u16, OwnedFd)>);

impl Listeners {
    pub(crate) fn add(&mut self, port: u16, socket: OwnedFd, phase: &Phase) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        spawn_accept_loop(port, &socket, phase)?;
        self.0.push((port, socket));
        Ok(())
    }

    /// Starts accepting on every listener for a phase.
    pub(crate) fn serve_all(&self, phase: &Phase) -> io::Result<()> {
        self.0.iter().try_for_each(|(port, socket)| spawn_accept_loop(*port, socket, phase))
    }

    /// Closes the connections that wait to be accepted, and returns how many there were.
    pub(crate) fn close_pending(&self) -> u64 {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut closed = 0;
        for (_, socket) in &self.0 {
            for _ in 0..MAX_BACKLOG {
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

fn spawn_accept_loop(port: u16, socket: &OwnedFd, phase: &Phase) -> io::Result<()> {
    let listener = TcpListener::from_std(socket.try_clone()?.into())?;
    tokio::spawn(accept_loop(listener, phase.clone(), port));
    Ok(())
}

async fn accept_loop(listener: TcpListener, phase: Phase, port: u16) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true); // a closed connection is noticed on first use
                phase.spawn_connection(Stream::Tcp(stream), port);
            }
            Err(_) => tokio::time::sleep(ACCEPT_BACKOFF).await,
        }
    }
}
