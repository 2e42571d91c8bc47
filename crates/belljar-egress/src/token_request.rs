//! Sends one request to a token endpoint, for the supervisor of a run. The proxy itself never sends one.
//!
//! The answer is hostile until it was parsed: its size and the time for it are limited, and no redirect is followed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::Host;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::policy::AddressScope;
use crate::upstream::dial::dial;
use crate::upstream::resolve::Resolver;
use crate::upstream::roots::ClientTls;

/// More than any answer with tokens.
const MAX_ANSWER: usize = 64 * 1024;
/// A name that is no browser's: some services refuse requests without one.
const AGENT: &str = concat!("belljar/", env!("CARGO_PKG_VERSION"));

/// Where a token endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUrl {
    uri: Uri,
    host: Host,
    port: u16,
    transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tls,
    /// To an address of this machine's loopback only.
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{url}\" is not a token endpoint: {why}")]
pub struct BadTokenUrl {
    url: String,
    why: &'static str,
}

/// The answer, whatever it says.
#[derive(Debug)]
pub struct TokenAnswer {
    pub status: u16,
    pub body: Zeroizing<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum TokenRequestError {
    #[error("no network access for the request: {0}")]
    Start(String),
    #[error("{host} cannot be reached: {why}")]
    Unreachable { host: String, why: String },
    #[error("{host} did not answer as HTTP requires: {why}")]
    NotHttp { host: String, why: String },
    #[error("{host} answered with more than {MAX_ANSWER} bytes")]
    TooLong { host: String },
    #[error("{host} did not answer within {seconds} s")]
    TimedOut { host: String, seconds: u64 },
}

impl TokenUrl {
    /// `https://host[:port]/path`. Plain HTTP is only for a literal loopback address: nothing leaves the machine.
    pub fn parse(text: &str) -> Result<Self, BadTokenUrl> {
        let wrong = |why| BadTokenUrl { url: belljar_spec::text::escape(text.as_bytes()), why };
        let uri: Uri = text.parse().map_err(|_| wrong("write https://host/path"))?;
        let authority = uri.authority().ok_or_else(|| wrong("write https://host/path"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("it must have no user and no query"));
        }
        let host = Host::parse(authority.host().as_bytes()) // an IPv6 address has its brackets
            .map_err(|_| wrong("it names no host"))?;
        let is_loopback = matches!(&host, Host::Address(address) if address.is_loopback());
        let (transport, usual) = match uri.scheme_str() {
            Some("https") => (Transport::Tls, 443),
            Some("http") if is_loopback => (Transport::Plain, 80),
            _ => return Err(wrong("only https:// keeps a login secret")),
        };
        let port = authority.port_u16().unwrap_or(usual);
        Ok(Self { host, port, transport, uri })
    }

    pub fn host(&self) -> String {
        self.host.to_string()
    }
}

/// Posts a body and returns the answer. Blocks for no longer than `timeout`.
pub fn post(
    url: &TokenUrl,
    content_type: &'static str,
    body: &[u8],
    timeout: Duration,
) -> Result<TokenAnswer, TokenRequestError> {
    let start = |error: &dyn std::fmt::Display| TokenRequestError::Start(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| start(&error))?;
    let answered = runtime
        .block_on(async { tokio::time::timeout(timeout, exchange(url, content_type, body)).await });
    runtime.shutdown_background(); // a lookup may still be waiting for its server
    answered.unwrap_or_else(|_| {
        Err(TokenRequestError::TimedOut { host: url.host(), seconds: timeout.as_secs() })
    })
}

async fn exchange(
    url: &TokenUrl,
    content_type: &'static str,
    body: &[u8],
) -> Result<TokenAnswer, TokenRequestError> {
    let unreachable = |error: &dyn std::fmt::Display| TokenRequestError::Unreachable {
        host: url.host(),
        why: error.to_string(),
    };
    let addresses: Vec<IpAddr> = match &url.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => Resolver::default()
            .addresses(name, AddressScope::Private)
            .await
            .map_err(|error| unreachable(&error))?,
    };
    // No list of a run applies to the supervisor's own requests.
    let dialled = dial(&addresses, url.port, &Arc::default()).await;
    let (stream, _) = dialled.map_err(|error| unreachable(&error))?;
    match url.transport {
        Transport::Plain => send(url, stream, content_type, body).await,
        Transport::Tls => {
            let tls = ClientTls::from_host()
                .map_err(|error| TokenRequestError::Start(error.to_string()))?;
            let name = match &url.host {
                Host::Name(name) => ServerName::try_from(name.clone()),
                Host::Address(address) => Ok(ServerName::from(*address)),
            };
            let name = name.map_err(|error| unreachable(&error))?;
            let connector = TlsConnector::from(Arc::clone(&tls.h1));
            let stream = connector.connect(name, stream).await.map_err(|e| unreachable(&e))?;
            send(url, stream, content_type, body).await
        }
    }
}

async fn send(
    url: &TokenUrl,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    content_type: &'static str,
    body: &[u8],
) -> Result<TokenAnswer, TokenRequestError> {
    let not_http = |error: &dyn std::fmt::Display| TokenRequestError::NotHttp {
        host: url.host(),
        why: error.to_string(),
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| not_http(&error))?;
    let connection = tokio::spawn(connection);
    let path = url.uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = url.uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::from_str(authority).map_err(|error| not_http(&error))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, host)
        .header(CONTENT_TYPE, content_type)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, AGENT)
        .body(Full::new(Bytes::copy_from_slice(body)))
        .map_err(|error| not_http(&error))?;
    let response = sender.send_request(request).await.map_err(|error| not_http(&error))?;
    let status = response.status().as_u16();
    let read = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    connection.abort(); // whatever else it sends is not read
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => TokenRequestError::TooLong { host: url.host() },
        None => not_http(&error),
    })?;
    Ok(TokenAnswer { status, body: Zeroizing::new(read.to_bytes().to_vec()) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_https_or_the_own_loopback_is_an_endpoint() {
        for good in [
            "https://auth.example/token",
            "https://auth.example:8443/a/b",
            "http://127.0.0.1:9/t",
            "http://[::1]:9/t",
        ] {
            TokenUrl::parse(good).unwrap();
        }
        for bad in [
            "http://auth.example/token",
            "http://10.0.0.1/token",
            "http://localhost:1/token",
            "https://user:pw@auth.example/t",
            "https://auth.example/t?x=1",
            "ftp://auth.example/t",
            "auth.example/t",
            "/t",
            "",
        ] {
            assert!(TokenUrl::parse(bad).is_err(), "{bad}");
        }
    }

    /// Answers one connection with these bytes, and returns the request.
    fn answer(bytes: Vec<u8>) -> (TokenUrl, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            let _ = stream.write_all(&bytes); // a client that has enough closes
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (TokenUrl::parse(&format!("http://127.0.0.1:{port}/token")).unwrap(), thread)
    }

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn a_request_is_sent_and_its_answer_returned() {
        let text = b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}".to_vec();
        let (url, thread) = answer(text);
        let answer = post(&url, "application/json", b"{\"a\":1}", TIMEOUT).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (400, b"{}".as_slice()));
        let request = thread.join().unwrap();
        assert!(request.starts_with("POST /token HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("content-type: application/json\r\n"), "{request}");
    }

    #[test]
    fn answers_that_are_too_long_or_no_http_are_refused() {
        let mut long = b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n".to_vec();
        long.resize(long.len() + 200_000, b'x');
        let (url, thread) = answer(long);
        let refused = post(&url, "application/json", b"", TIMEOUT).unwrap_err();
        assert!(matches!(refused, TokenRequestError::TooLong { .. }), "{refused}");
        thread.join().unwrap();
        let (url, thread) = answer(b"SSH-2.0-x\r\n\r\n".to_vec());
        let refused = post(&url, "application/json", b"", TIMEOUT).unwrap_err();
        assert!(matches!(refused, TokenRequestError::NotHttp { .. }), "{refused}");
        thread.join().unwrap();
    }

    #[test]
    fn silence_ends_in_time_and_a_closed_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = TokenUrl::parse(&format!("http://127.0.0.1:{port}/token")).unwrap();
        let silent = post(&url, "application/json", b"", Duration::from_millis(300)).unwrap_err();
        assert!(matches!(silent, TokenRequestError::TimedOut { .. }), "{silent}");
        drop(listener);
        let refused = post(&url, "application/json", b"", TIMEOUT).unwrap_err();
        assert!(matches!(refused, TokenRequestError::Unreachable { .. }), "{refused}");
    }
}
