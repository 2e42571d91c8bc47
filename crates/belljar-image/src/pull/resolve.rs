//! Addresses of a registry's host. The executable is static, so the system's resolver library is not used, but
//! its configuration is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_resolver::TokioResolver;

/// Whether a host is this machine, by its name alone.
pub(super) fn is_loopback(host: &str) -> bool {
    match address(host) {
        Some(address) => address.is_loopback(),
        None => host == "localhost" || host.ends_with(".localhost"),
    }
}

fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// A name of this machine is never asked for elsewhere.
pub(super) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(address) = address(host) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    if is_loopback(host) {
        let both = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        return Ok(both.map(|address| SocketAddr::new(address, port)).to_vec());
    }
    let resolver = TokioResolver::builder_tokio()
        .and_then(|builder| builder.build())
        .map_err(io::Error::other)?;
    let found = resolver.lookup_ip(host).await.map_err(io::Error::other)?;
    Ok(found.iter().map(|address| SocketAddr::new(address, port)).collect())
}
