//! A tunnel to the port of plain HTTP. Its requests can be seen, so each of them has to be for the host that the tunnel
//! was asked for, and rules on methods and paths hold in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_spec::egress::Via;
use belljar_spec::host_rule::Seen;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::http::forward;
use crate::http::framing::watched;
use crate::http::headers::{Target, bad};
use crate::inbound::http_server;
use crate::inbound::tunnel::Tunnel;
use crate::io::prefixed_io::Rewound;
use crate::io::stream::Stream;
use crate::proxy::{Ask, Proxy, Unused};
use crate::upstream::pool::Slot;
use crate::upstream::tls::Tls;

/// For the first bytes. Clients open connections ahead of need.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// What TLS begins with.
const HANDSHAKE: u8 = 0x16;

/// `early` was read from `inner` before.
pub(crate) async fn serve(
    proxy: &Arc<Proxy>,
    tls: &Arc<Tls>,
    (mut inner, mut early): (Stream, Vec<u8>),
    target: Target,
    via: Via,
) {
    let Target { host, port, .. } = target.clone();
    let ask = Ask { host: host.clone(), port, via, seen: Seen::Nothing };
    if early.is_empty() {
        let (mut first, began) = ([0; 1], Instant::now());
        match timeout(PATIENCE, inner.read(&mut first)).await {
            Ok(Ok(1)) => early.extend_from_slice(&first),
            Ok(_) => return proxy.tell_unused(&ask, began, Unused::Closed),
            Err(_) => return proxy.tell_unused(&ask, began, Unused::Silent),
        }
    }
    if early.first() == Some(&HANDSHAKE) {
        // The name in it is compared there.
        if let Ok(tunnel) = Tunnel::open(proxy, host, port, via).await {
            tunnel.carry(inner, early).await;
        }
        return;
    }
    let (io, framing) = watched(Rewound { io: inner, early: early.into() });
    let slot = Arc::new(Slot::new(tls, Some(framing)));
    let served = http_server::h1(io, forward::handler(proxy, &slot, &target, via)).await;
    slot.ended().await;
    if let Err(error) = served
        && error.is_parse()
    {
        // hyper has answered it already.
        let _ = proxy.deny(&ask, bad(&error.to_string()));
    }
}
