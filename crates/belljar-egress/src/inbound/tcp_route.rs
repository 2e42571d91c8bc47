//! Serves a route that carries bytes: a port in the sandbox that leads to one host and port, whatever the protocol.

use std::sync::Arc;

use belljar_spec::egress::RouteSpec;
use belljar_spec::host_rule::Seen;

use crate::inbound::relay::{FirstBytes, Relay};
use crate::inbound::route::access_to;
use crate::inbound::tunnel::note_end;
use crate::io::stream::Stream;
use crate::proxy::Proxy;

/// The host is dialled at once, since some servers send first. A refusal is a reset: there is no protocol to say why.
pub(super) async fn serve(proxy: &Arc<Proxy>, client: Stream, route: &RouteSpec) {
    let Ok(mut ticket) = proxy.admit_route(&access_to(route, Seen::Nothing), route.listen) else {
        return client.reset();
    };
    let upstream = match ticket.dial().await {
        Ok(upstream) => Stream::Upstream(upstream),
        Err(_) => return client.reset(),
    };
    let relay = Relay::new(&client, &upstream, &proxy.buffers, &mut ticket);
    let ended = relay.run(async { Ok(FirstBytes::default()) }).await;
    note_end(ended, &mut ticket, client);
}
