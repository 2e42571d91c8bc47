//! Serves a tunnel to port 80 as plain HTTP.
//!
//! Its requests can be read, so each must be for the tunnel's host, and rules on methods and paths apply.

use std::sync::Arc;
use std::time::Duration;

use belljar_spec::egress::Via;
use belljar_spec::host_rule::Seen;

use crate::http::forward;
use crate::http::framing::monitor_framing;
use crate::http::headers::Target;
use crate::inbound::first_byte::read_first_byte;
use crate::inbound::http_server;
use crate::inbound::sniff_tls::TLS_HANDSHAKE;
use crate::inbound::tunnel::Tunnel;
use crate::io::prefixed_io::PrefixedIo;
use crate::io::stream::Stream;
use crate::proxy::{AccessRequest, Proxy};
use crate::upstream::pool::UpstreamPool;
use crate::upstream::tls::TlsContext;

/// For the first byte. Clients open connections ahead of need.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// `prefix` was already read from `client`.
pub(crate) async fn serve(
    proxy: &Arc<Proxy>,
    tls: &Arc<TlsContext>,
    (mut client, mut prefix): (Stream, Vec<u8>),
    target: Target,
    via: Via,
) {
    let Target { host, port, .. } = target.clone();
    let access = AccessRequest { host: host.clone(), port, via, seen: Seen::Nothing };
    if prefix.is_empty() {
        match read_first_byte(proxy, &access, &mut client, FIRST_BYTE_TIMEOUT).await {
            Some(first) => prefix.push(first),
            None => return,
        }
    }
    if prefix.first() == Some(&TLS_HANDSHAKE) {
        // The tunnel checks the server name in it.
        if let Ok(tunnel) = Tunnel::open(proxy, host, port, via).await {
            tunnel.run(client, prefix).await;
        }
        return;
    }
    let (io, framing) = monitor_framing(PrefixedIo { io: client, prefix: prefix.into() });
    let pool = Arc::new(UpstreamPool::new(tls, Some(framing)));
    let served = http_server::serve_h1(io, forward::handler(proxy, &pool, &target, via)).await;
    pool.wait_for_upgraded().await;
    http_server::report_parse_error(proxy, &access, served);
}
