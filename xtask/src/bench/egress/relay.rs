//! The plainest forwarder there is: one process, one thread, bytes from one socket to the other. Whatever looks at
//! connections at all does at least this.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};

/// Makes this program the forwarder: `--relay LISTEN TO`.
pub(super) const RELAY: &str = "--relay";
const BUFFER: usize = 64 * 1024;

pub(super) fn main(addresses: &[SocketAddr]) -> Result<ExitCode> {
    let [listen, to] = *addresses else { bail!("usage: {RELAY} LISTEN TO") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(listen, to)).context("the forwarder failed")?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(listen: SocketAddr, to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (mut from, _) = listener.accept().await?;
        tokio::spawn(async move {
            let _ = from.set_nodelay(true);
            if let Ok(mut to) = TcpStream::connect(to).await {
                let _ = to.set_nodelay(true);
                // Whoever is on either side may leave.
                let _ = copy_bidirectional_with_sizes(&mut from, &mut to, BUFFER, BUFFER).await;
            }
        });
    }
}
