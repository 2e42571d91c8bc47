//! Serves a tunnel to port 80 as plain HTTP.
//!
//! Its requests can be read, so each must be for the tunnel's host, and rules on methods and paths apply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_spec::egress::Via;
use belljar_spec::host_rule::Seen;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::http::forward;
use crate::http::framing::monitor_framing;
use crate::http::headers::{Target, bad_request};
use crate::inbound::http_server;
use crate::inbound::tunnel::Tunnel;
use crate::io::prefixed_io::PrefixedIo;
use crate::io::stream::Stream;
use crate::proxy::{AccessRequest, Proxy, UnusedConnection};
use crate::upstream::pool::UpstreamPool;
use crate::upstream::tls::TlsContext;

/// For the first byte. Clients open connections ahead of need.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// `prefix` was already read from `inner`.
pub(crate) async fn serve(
    proxy: &Arc<Proxy>,
    tls: &Arc<TlsContext>,
    (mut inner, mut prefix): (Stream, Vec<u8>),
    target: Target,
    via: Via,
) {
    let Target { host, port, .. } = target.clone();
    let access = AccessRequest { host: host.clone(), port, via, seen: Seen::Nothing };
    if prefix.is_empty() {
        let (mut first, began) = ([0; 1], Instant::now());
        match timeout(FIRST_BYTE_TIMEOUT, inner.read(&mut first)).await {
            Ok(Ok(1)) => prefix.extend_from_slice(&first),
            Ok(_) => return proxy.report_unused(&access, began, UnusedConnection::Closed),
            Err(_) => return proxy.report_unused(&access, began, UnusedConnection::TimedOut),
        }
    }
    if prefix.first() == Some(&HANDSHAKE) {
        // The tunnel checks the server name in it.
        if let Ok(tunnel) = Tunnel::open(proxy, host, port, via).await {
            tunnel.run(inner, prefix).await;
        }
        return;
    }
    let (io, framing) = monitor_framing(PrefixedIo { io: inner, prefix: prefix.into() });
    let pool = Arc::new(UpstreamPool::new(tls, Some(framing)));
    let served = http_server::serve_h1(io, forward::handler(proxy, &pool, &target, via)).await;
    pool.wait_for_upgraded().await;
    if let Err(error) = served
        && error.is_parse()
    {
        // hyper has already responded.
        let _ = proxy.deny(&access, bad_request(&error.to_string()));
    }
}
