//! Accepts connections from the sandbox and serves them: HTTP proxy, CONNECT, SOCKS, routes, intercepted TLS.

pub(crate) mod connect;
pub(crate) mod connect_plan;
mod first_byte;
pub(crate) mod half_close;
pub(crate) mod http_server;
pub(crate) mod intercept;
pub(crate) mod phase;
pub(crate) mod plain_tunnel;
pub(crate) mod relay;
pub(crate) mod route;
pub(crate) mod sniff_protocol;
pub(crate) mod sniff_tls;
pub(crate) mod socks;
pub(crate) mod tcp_route;
pub(crate) mod tunnel;
