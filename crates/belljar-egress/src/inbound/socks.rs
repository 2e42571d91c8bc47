//! Serves SOCKS 5 (RFC 1928), where the proxy resolves the name that the client asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, Via};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::inbound::connect_plan::ConnectPlan;
use crate::io::stream::Stream;
use crate::policy::Denial;
use crate::proxy::{Proxy, Refusal};
use crate::upstream::tls::TlsContext;

/// For everything up to and including the client's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The reply codes of RFC 1928.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocksReply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimedOut = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl From<&Refusal> for SocksReply {
    fn from(refusal: &Refusal) -> Self {
        match (refusal.public_reason(), refusal.status) {
            (Some(DenyReason::BadRequest), _) => Self::GeneralFailure,
            (Some(_), _) => Self::NotAllowed,
            (None, 504) => Self::TimedOut,
            (None, 503) => Self::ConnectionRefused,
            (None, _) => Self::HostUnreachable,
        }
    }
}

/// Why there is no request to act on.
#[derive(Debug)]
enum SocksError {
    /// The client is gone, or does not speak the protocol.
    Broken,
    Reply(SocksReply),
}

impl From<io::Error> for SocksError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

pub(crate) async fn serve(proxy: &Arc<Proxy>, tls: &Arc<TlsContext>, mut stream: Stream) {
    let target = match timeout(REQUEST_TIMEOUT, read_request(proxy, &mut stream)).await {
        Ok(target) => target,
        Err(_) => return,
    };
    let plan = match target {
        Ok((host, port)) => ConnectPlan::open(proxy, host, port, Via::Socks).await,
        Err(SocksError::Broken) => return,
        Err(SocksError::Reply(reply)) => return drop(send_reply(&mut stream, reply).await),
    };
    match plan {
        Ok(plan) => {
            if send_reply(&mut stream, SocksReply::Succeeded).await.is_ok() {
                plan.run(tls, stream, Vec::new()).await;
            }
        }
        Err(refusal) => drop(send_reply(&mut stream, SocksReply::from(&refusal)).await),
    }
}

async fn read_request(proxy: &Proxy, stream: &mut Stream) -> Result<(Host, u16), SocksError> {
    let [version, methods] = read(stream).await?;
    if version != VERSION {
        return Err(SocksError::Broken);
    }
    let mut offered = vec![0; methods.into()];
    stream.read_exact(&mut offered).await?;
    if !offered.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(SocksError::Broken);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;

    let [version, command, _, kind] = read(stream).await?;
    if version != VERSION {
        return Err(SocksError::Broken);
    }
    // The whole request is read before the reply is sent, so that the reply is not lost to a reset.
    let target = match kind {
        IPV4 => Ok(Host::Address(Ipv4Addr::from(read::<4>(stream).await?).into())),
        IPV6 => {
            let address = Ipv6Addr::from(read::<16>(stream).await?);
            Ok(Host::Address(IpAddr::V6(address).to_canonical()))
        }
        NAME => {
            let [length] = read(stream).await?;
            let mut name = vec![0; length.into()];
            stream.read_exact(&mut name).await?;
            Host::parse(&name).map_err(|error| (name, error))
        }
        _ => return Err(SocksError::Reply(SocksReply::AddressTypeNotSupported)),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    if command != CONNECT {
        let text = format!("(command {command})");
        deny(proxy, text.as_bytes(), DenyReason::BadRequest, "only CONNECT is understood");
        return Err(SocksError::Reply(SocksReply::CommandNotSupported));
    }
    match target {
        Ok(_) if port == 0 => {
            deny(proxy, b"(port 0)", DenyReason::BadRequest, "0 is no port");
            Err(SocksError::Reply(SocksReply::GeneralFailure))
        }
        Ok(host) => Ok((host, port)),
        Err((text, error)) => {
            deny(proxy, &text, DenyReason::NotAName, &error.to_string());
            Err(SocksError::Reply(SocksReply::NotAllowed))
        }
    }
}

fn deny(proxy: &Proxy, text: &[u8], reason: DenyReason, why: &str) {
    proxy.deny_unparsed(text, Via::Socks, Denial { reason, detail: Some(why.to_owned()) });
}

async fn read<const N: usize>(stream: &mut Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// The bound address in the reply is all zero: the proxy's own address means nothing to the client.
async fn send_reply(stream: &mut Stream, reply: SocksReply) -> io::Result<()> {
    stream.write_all(&[VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]).await
}

/// Version 4 has addresses only, which the client resolves itself.
pub(crate) fn refuse_version_4(proxy: &Proxy, stream: &Stream) {
    const REJECTED: [u8; 8] = [0, 0x5b, 0, 0, 0, 0, 0, 0];
    deny(proxy, b"(SOCKS 4)", DenyReason::BadRequest, "only version 5 of SOCKS is understood");
    let _ = stream.try_write(&REJECTED); // if this fails, the client still sees the close
}
