//! Waits for the first byte of a tunnel that the proxy reads, and reports a tunnel that stays unused.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::proxy::{AccessRequest, Proxy, UnusedConnection};

/// `None` if the client closed the connection or sent nothing in time, which is reported here.
pub(super) async fn read_first_byte(
    proxy: &Proxy,
    access: &AccessRequest<'_>,
    io: &mut (impl AsyncRead + Unpin),
    limit: Duration,
) -> Option<u8> {
    let (mut first, started) = ([0; 1], Instant::now());
    let unused = match timeout(limit, io.read(&mut first)).await {
        Ok(Ok(1)) => return Some(first[0]),
        Ok(_) => UnusedConnection::Closed,
        Err(_) => UnusedConnection::TimedOut,
    };
    proxy.report_unused(access, started, unused);
    None
}
