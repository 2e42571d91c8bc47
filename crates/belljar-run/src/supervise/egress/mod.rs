//! Connections across the boundary: out through the run's proxy, in through published ports.
//!
//! The proxy is a process of its own, which alone decides. In the jail it has the sandbox's listening sockets; on an
//! engine each connection from inside is a stream of the channel, and the proxy gets one end of a socket pair.
//! Connections from the host go to PID 1 over the channel on every backend.

mod change_list;
mod files;
mod narrow;
mod process;
mod proxy;
mod publish;
mod record_event;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_change;
#[cfg(test)]
mod tests_many;
#[cfg(test)]
mod tests_narrow;

use std::ops::{Range, RangeFrom};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_egress::control::ToProxy;
use belljar_spec::EventKind;
use belljar_spec::egress::{Published, RouteSpec, SecretValue};
use belljar_spec::network_list::NetworkList;
use belljar_spec::wire::{
    FIRST_ACCEPT_STREAM, FIRST_CONNECT_STREAM, MAX_CONNECTIONS, MAX_CONNECTS, Mux, ToInit,
};
use belljar_sys::relay::{Relay, Relays, refuse};
use rustix::event::PollFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::json;

use change_list::LiveList;
pub(crate) use narrow::AfterSetup;
pub use process::run_proxy_if_requested;
pub use proxy::EgressError;
pub(crate) use proxy::Proxy;
pub(crate) use publish::Ports;
pub use publish::PublishError;

use belljar_record::{RecordError, Recorder};
use files::MoreFiles;
use proxy::ProxyEvents;
use record_event::record_event;

/// For the proxy's last events.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Streams of connections from the host, and of those from inside.
const CONNECTED: Range<u32> = FIRST_CONNECT_STREAM..FIRST_ACCEPT_STREAM;
const ACCEPTED: RangeFrom<u32> = FIRST_ACCEPT_STREAM..;

/// The connections of one sandbox across the boundary.
#[derive(Debug, Default)]
pub(crate) struct NetworkBridge {
    pub(crate) proxy: Option<Proxy>,
    pub(crate) ports: Ports,
    relays: Relays,
    /// Connections from the host so far; each has a stream of its own.
    connects: u32,
    /// While there can be connections.
    files: Option<MoreFiles>,
    /// Until the set-up is over; `None` where there is none.
    after_setup: Option<AfterSetup>,
    live: LiveList,
    /// The proxy died.
    is_lost: bool,
}

impl NetworkBridge {
    pub(crate) fn new(proxy: Option<Proxy>, ports: Ports) -> Self {
        Self { proxy, ports, ..Self::default() }
    }

    pub(super) fn list(&self) -> &NetworkList {
        &self.live.list
    }

    pub(super) fn routes(&self) -> &[RouteSpec] {
        &self.live.start.egress.routes
    }

    pub(super) fn published(&self) -> Vec<Published> {
        self.ports.published()
    }

    /// Before the command is released: the proxy is ready, and gets the sandbox's listening sockets.
    pub(super) fn prepare(
        &mut self,
        listeners: Vec<(u16, OwnedFd)>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        if let Some(proxy) = &mut self.proxy {
            for (port, socket) in listeners {
                proxy.hand_over(ToProxy::Listener { port }, socket);
            }
        }
        // After the sandbox was started, so that none of its processes inherits the limit.
        if self.proxy.is_some() || !self.published().is_empty() {
            self.files = MoreFiles::take();
        }
        for published in self.published() {
            recorder.event(EventKind::PortPublished, &json!(published))?;
        }
        Ok(())
    }

    /// Adds the descriptors to wait for. The result is the streams that the last of them stand for.
    pub(super) fn watch<'a>(&'a self, mux: Option<&Mux>, fds: &mut Vec<PollFd<'a>>) -> Vec<u32> {
        fds.extend(self.proxy.as_ref().map(Proxy::poll_fd));
        let Some(mux) = mux else { return Vec::new() };
        if self.may_connect(mux) {
            self.ports.watch(fds);
        }
        self.relays.watch(mux, fds)
    }

    /// A new value for a secret that the proxy has.
    pub(super) fn replace_secret(&mut self, value: SecretValue) {
        if let Some(proxy) = &mut self.proxy {
            proxy.replace_secret(value);
        }
    }

    pub(super) fn next_moment(&self) -> Option<Instant> {
        self.ports.closed_until()
    }

    /// Records the proxy's events, accepts connections from the host, and moves bytes both ways.
    pub(super) fn turn(
        &mut self,
        ready: &[u32],
        mut mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        self.take_proxy_events(mux.as_deref_mut(), recorder)?;
        if let Some(mux) = mux {
            self.accept_published(mux);
            self.relays.move_bytes(ready, mux);
            if let Some(proxy) = &mut self.proxy {
                let relays = &self.relays;
                proxy.retain_pending(|stream| relays.contains(stream));
            }
        }
        Ok(())
    }

    fn take_proxy_events(
        &mut self,
        mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        let Some(proxy) = &mut self.proxy else { return Ok(()) };
        let ProxyEvents { events, gone } = proxy.take_events();
        for event in events {
            record_event(event, recorder)?;
        }
        match gone {
            Some(why) => self.lose(&why, mux, recorder),
            None => Ok(()),
        }
    }

    /// The proxy is gone: from here on nothing gets out.
    fn lose(
        &mut self,
        why: &str,
        mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        self.proxy = None; // and with it the process
        self.is_lost = true;
        if let Some(mux) = mux {
            self.relays.break_off(ACCEPTED, mux);
        }
        let why = recorder.secrets().mask_words_of(why);
        recorder.event(EventKind::EgressLost, &json!({ "why": why }))
    }

    /// A process inside connected to a port of the proxy. The stream is open on this end.
    pub(super) fn accepted(&mut self, stream: u32, port: u16, mux: &mut Mux) {
        // Some whose streams are over may still have something for the proxy, which is never slow for long. Each
        // takes one descriptor, and another one until the proxy has it.
        let pending = self.proxy.as_ref().map_or(0, Proxy::pending);
        let is_full = self.relays.count(ACCEPTED) + pending >= 2 * MAX_CONNECTIONS;
        let pair = || {
            let flags = SocketFlags::CLOEXEC;
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        };
        let Some(proxy) = self.proxy.as_mut().filter(|_| !is_full) else {
            return refuse(stream, mux);
        };
        let made = pair().and_then(|(ours, theirs)| Ok((Relay::new(ours, stream)?, theirs)));
        match made {
            Ok((relay, theirs)) => {
                proxy.hand_over_connection(stream, port, theirs);
                self.relays.push(relay);
            }
            Err(_) => refuse(stream, mux), // out of descriptors
        }
    }

    pub(super) fn take_data(&mut self, stream: u32, bytes: &[u8], mux: &mut Mux) {
        match self.relays.get(stream) {
            Some(relay) => relay.accept(bytes, mux),
            None => mux.consumed(stream, bytes.len()), // of a connection that was given up
        }
    }

    pub(super) fn take_end(&mut self, stream: u32, mux: &mut Mux) {
        if let Some(relay) = self.relays.get(stream) {
            relay.end(mux);
        }
    }

    pub(super) fn take_reset(&mut self, stream: u32, mux: &mut Mux) {
        if let Some(relay) = self.relays.get(stream) {
            relay.give_up_output(mux);
        }
    }

    /// A stream that was reset is open until PID 1 has answered, and a relay whose stream is over may still have
    /// something to deliver: neither may become too many, or commands find no stream.
    fn may_connect(&self, mux: &Mux) -> bool {
        mux.count_open(CONNECTED).max(self.relays.count(CONNECTED)) < MAX_CONNECTS
            && self.connects < FIRST_ACCEPT_STREAM - FIRST_CONNECT_STREAM
    }

    fn accept_published(&mut self, mux: &mut Mux) {
        while self.may_connect(mux) {
            let Some((connection, port)) = self.ports.accept() else { return };
            let stream = FIRST_CONNECT_STREAM + self.connects;
            // Only with a stream and a socket that does not block; otherwise the connection is closed.
            if let (Ok(relay), Ok(())) = (Relay::new(connection, stream), mux.open(stream)) {
                self.connects += 1;
                self.relays.push(relay);
                let _ = mux.send(&ToInit::Connect { stream, port }); // never too long
            }
        }
    }

    /// The sandbox is over: nothing crosses the boundary any more, and the proxy reports the rest.
    pub(super) fn end(&mut self) {
        self.relays.clear();
        self.ports = Ports::default();
        self.files = None;
        if let Some(proxy) = &mut self.proxy {
            proxy.shut_down();
        }
    }

    /// Records the proxy's last events, then ends it.
    pub(super) fn finish(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        let Some(mut proxy) = self.proxy.take() else { return Ok(()) };
        proxy.shut_down();
        for event in proxy.last_events(LAST_EVENTS_TIMEOUT) {
            if recorder.is_sound() {
                record_event(event, recorder)?;
            }
        }
        Ok(())
    }
}
