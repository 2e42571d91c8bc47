//! A proxy that allows everything: the control, through which every attack on belljar's proxy must succeed.
//!
//! It speaks the same protocols on the same port of the test network's loopback.

use std::io;
use std::net::{IpAddr, SocketAddr};

use belljar_spec::egress::PROXY_PORT;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::counts::Watch;
use super::dns;

const MAX_HEAD: usize = 64 * 1024;

pub(super) async fn serve(watch: Watch) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PROXY_PORT)).await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let watch = watch.clone();
            tokio::spawn(async move {
                let _ = connection(stream, &watch).await; // the client may leave at any time
            });
        }
    });
    Ok(())
}

async fn connection(mut from: TcpStream, watch: &Watch) -> io::Result<()> {
    let mut first = [0];
    from.peek(&mut first).await?;
    if first[0] == 5 { socks(from, watch).await } else { http(&mut from, watch).await }
}

async fn http(from: &mut TcpStream, watch: &Watch) -> io::Result<()> {
    let mut read = Vec::new();
    let end = loop {
        let found = read.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(at) = found {
            break at + 4;
        }
        if read.len() > MAX_HEAD || from.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let mut argv = head.split([' ', '\r']);
    let (method, target) = (argv.next().unwrap_or_default(), argv.next().unwrap_or_default());
    let (authority, first) = if method == "CONNECT" {
        (target.to_owned(), read[end..].to_vec())
    } else {
        let authority = target.split("://").nth(1).unwrap_or(target);
        let authority = authority.split('/').next().unwrap_or_default();
        (authority.to_owned(), read)
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(80)),
        _ => (authority.as_str(), 80),
    };
    let mut to = dial(host, port, watch).await?;
    if method == "CONNECT" {
        from.write_all(b"HTTP/1.1 200 Sure\r\n\r\n").await?;
    }
    to.write_all(&first).await?;
    copy_bidirectional(from, &mut to).await.map(drop)
}

async fn socks(mut from: TcpStream, watch: &Watch) -> io::Result<()> {
    let mut greeting = [0; 2];
    from.read_exact(&mut greeting).await?;
    let mut methods = vec![0; usize::from(greeting[1])];
    from.read_exact(&mut methods).await?;
    from.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    from.read_exact(&mut request).await?;
    let host = match request[3] {
        1 => IpAddr::from({
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes).await?;
            bytes
        })
        .to_string(),
        4 => IpAddr::from({
            let mut bytes = [0; 16];
            from.read_exact(&mut bytes).await?;
            bytes
        })
        .to_string(),
        _ => {
            let mut name = vec![0; usize::from(from.read_u8().await?)];
            from.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
    };
    let port = from.read_u16().await?;
    let mut to = dial(&host, port, watch).await?;
    from.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut from, &mut to).await.map(drop)
}

/// Resolves once to look, and once more to connect: what a checker does that can be fooled.
async fn dial(host: &str, port: u16, watch: &Watch) -> io::Result<TcpStream> {
    let _looked_at = lookup(host, watch).await;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in lookup(host, watch).await {
        match TcpStream::connect(SocketAddr::new(address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn lookup(host: &str, watch: &Watch) -> Vec<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    if let Some(address) = literal(host) {
        return vec![address];
    }
    let host = host.to_lowercase();
    let mut all = Vec::new();
    for kind in ["A", "AAAA"] {
        all.extend(dns::resolve(&host, kind, watch).await.unwrap_or_default().addresses);
    }
    all
}

/// In every spelling that the C library takes: `127.1`, `0x7f000001`, `017700000001`, `2130706433`.
fn literal(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.split('%').next()?.parse().ok();
    }
    let mut numbers = Vec::new();
    for part in text.split('.') {
        let lower = part.to_lowercase();
        let number = match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
            (Some(digits), _) => u32::from_str_radix(digits, 16),
            (None, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8),
            _ => lower.parse(),
        };
        numbers.push(number.ok()?);
    }
    let (last, front) = numbers.split_last()?;
    if front.len() > 3 || front.iter().any(|number| *number > 255) {
        return None;
    }
    let mut address = u64::from(*last);
    for (at, number) in front.iter().enumerate() {
        address |= u64::from(*number) << (8 * (3 - at));
    }
    u32::try_from(address).ok().map(|bits| IpAddr::V4(bits.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_every_spelling() {
        let loopback = Some(IpAddr::from([127, 0, 0, 1]));
        for text in ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0x7f.1"] {
            assert_eq!(literal(text), loopback, "{text}");
        }
        assert_eq!(literal("ok.example"), None);
    }
}
