//! The process of the test network: it creates the network, serves in it, and reports its counts.

use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;

use super::counts::{Request, Watch};
use super::http1::Site;
use super::{
    AUTHORITY, FILES, READY, WorldError, certificates, dns, forward, http1, http2, network,
    open_proxy,
};

/// Plain, of web servers.
const HTTP_PORTS: [u16; 2] = [80, 8080];
const TLS_PORTS: [u16; 2] = [443, 8443];
const SSH_PORT: u16 = 22;
/// How every record begins that a client can begin with.
const TLS_HANDSHAKE: u8 = 0x16;

/// Until its input ends. `DIRECTORY` gets the authority's certificate, and holds the files to serve.
pub(super) fn run(directory: &Path) -> Result<(), WorldError> {
    if dns::nameservers().is_empty() {
        return Err(WorldError::NoResolver);
    }
    network::make()?;
    crate::probe::raise_descriptors();
    let step = |what: &'static str| move |error: std::io::Error| WorldError::Step(what, error);
    forward::load(directory).map_err(step("read the forwarded names"))?;
    let (config, authority) = certificates::make()?;
    std::fs::write(directory.join(AUTHORITY), authority).map_err(step("write the authority"))?;
    let watch = Watch::default();
    let site = Site { watch: watch.clone(), files: directory.join(FILES) };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(step("start the servers"))?;
    runtime.block_on(start(&site, config)).map_err(step("start the servers"))?;
    control(&watch).map_err(step("read requests"))
}

async fn start(site: &Site, config: Arc<ServerConfig>) -> std::io::Result<()> {
    dns::serve(&site.watch).await?;
    open_proxy::serve(site.watch.clone()).await?;
    for port in HTTP_PORTS {
        let site = site.clone();
        accept(port, site.watch.clone(), move |stream, at| {
            let site = site.clone();
            async move { http1::serve(stream, at, None, &site).await }
        })
        .await?;
    }
    for port in TLS_PORTS {
        let (site, config) = (site.clone(), Arc::clone(&config));
        accept(port, site.watch.clone(), move |stream, at| {
            tls(Arc::clone(&config), stream, at, site.clone())
        })
        .await?;
    }
    accept(SSH_PORT, site.watch.clone(), |mut stream, _| async move {
        let _ = stream.write_all(b"SSH-2.0-World\r\n").await; // the count is what matters
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await
}

/// On every address there is.
async fn accept<F, S>(port: u16, watch: Watch, serve: S) -> std::io::Result<()>
where
    S: Fn(TcpStream, SocketAddr) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await;
    let listener = match both {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?, // without IPv6
    };
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let Ok(at) = stream.local_addr() else { continue };
            let open = watch.accepted(at);
            let _ = stream.set_nodelay(true);
            let served = serve(stream, at);
            tokio::spawn(async move {
                served.await;
                drop(open);
            });
        }
    });
    Ok(())
}

async fn tls(config: Arc<ServerConfig>, stream: TcpStream, at: SocketAddr, site: Site) {
    let mut first = [0; 64];
    let length = stream.peek(&mut first).await.unwrap_or(0);
    if length > 0 && first[0] != TLS_HANDSHAKE {
        // Kept, so that it is known what got here.
        let head = String::from_utf8_lossy(&first[..length]).into_owned();
        let (at, body) = (super::counts::spelled(at), String::new());
        return site.watch.requested(Request { at, sni: None, head, body });
    }
    let Ok(start) = LazyConfigAcceptor::new(Default::default(), stream).await else { return };
    if let Some(socket) = start.client_hello().server_name().and_then(forward::socket_of) {
        let Ok(stream) = start.into_stream(http1_only(&config)).await else { return };
        return forward::relay(stream, socket).await;
    }
    let Ok(stream) = start.into_stream(config).await else { return };
    let (_, session) = stream.get_ref();
    let sni = session.server_name().map(str::to_owned);
    if session.alpn_protocol() == Some(b"h2") {
        http2::serve(stream, at, sni, &site).await;
    } else {
        http1::serve(stream, at, sni, &site).await;
    }
}

/// A server behind a socket gets the bytes as they are, so the protocol cannot depend on the client.
fn http1_only(config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// One command per line: `seen` returns a line of JSON, `reset` clears the counts.
fn control(watch: &Watch) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{READY}").and_then(|()| out.flush())?;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "reset" => {
                watch.reset();
                writeln!(out, "{READY}")?;
            }
            _ => writeln!(out, "{}", serde_json::to_string(&watch.so_far())?)?,
        }
        out.flush()?;
    }
    Ok(())
}
