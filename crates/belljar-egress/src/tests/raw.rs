//! Tests raw requests that no honest client sends.

use std::convert::Infallible;
use std::sync::Arc;

use belljar_spec::egress::{
    DenyReason, EgressEvent, EgressSpec, SecretPlace, SecretSource, SecretSpec,
};
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::intercept::intercepting;
use crate::http::forward;
use crate::http::framing::monitor_framing;
use crate::inbound::http_server;
use crate::testing::client::tls;
use crate::testing::{Ca, H1, Origin, ServerProtocol, TestProxy, host};
use crate::upstream::pool::UpstreamPool;

/// The proxy's port, for requests in absolute form.
fn proxy_port(run: &TestProxy) -> DuplexStream {
    proxy_port_with(run, Monitoring::On)
}

#[derive(PartialEq, Eq)]
enum Monitoring {
    On,
    Off,
}

fn proxy_port_with(run: &TestProxy, monitoring: Monitoring) -> DuplexStream {
    let (inside, outside) = tokio::io::duplex(64 * 1024);
    let (proxy, tls) = (run.proxy.clone(), run.tls.clone());
    tokio::spawn(async move {
        let (io, framing) = monitor_framing(outside);
        let framing = Some(framing).filter(|_| monitoring == Monitoring::On);
        let pool = Arc::new(UpstreamPool::new(&tls, framing));
        let service = service_fn(move |request| {
            let (proxy, pool) = (proxy.clone(), pool.clone());
            async move { Ok::<_, Infallible>(forward::forward_absolute(&proxy, &pool, request).await) }
        });
        let _ = http_server::serve_h1(io, service).await;
    });
    inside
}

async fn denial_reason(run: &TestProxy) -> DenyReason {
    let events = run.wait_for_events(|event| matches!(event, EgressEvent::Denied(_))).await;
    let reason = events.iter().find_map(|event| match event {
        EgressEvent::Denied(denied) => Some(denied.reason),
        _ => None,
    });
    reason.unwrap()
}

async fn send(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

fn plain_spec(origins: &[&Origin]) -> EgressSpec {
    let allow_private = origins.iter().map(|origin| origin.authority()).collect();
    EgressSpec { allow_private, ..EgressSpec::default() }
}

#[tokio::test]
async fn a_plain_request_is_forwarded_without_proxy_headers() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::Plain).await;
    let run = TestProxy::new(&ca, plain_spec(&[&origin]), &[]);
    let port = origin.port;
    let request = format!(
        "GET http://localhost:{port}/x?y HTTP/1.1\r\nHost: localhost:{port}\r\nProxy-Authorization: Basic x\r\n\
         Proxy-Connection: keep-alive\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nX-Yours: 2\r\n\r\n"
    );
    let response = send(proxy_port(&run), &request).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let received = &origin.requests()[0];
    assert_eq!((received.method.as_str(), received.uri.as_str()), ("GET", "/x?y"));
    assert_eq!(received.headers["x-yours"], "2");
    for name in ["x-mine", "proxy-authorization", "proxy-connection"] {
        assert!(!received.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn one_connection_serves_several_hosts_one_after_another() {
    let ca = Ca::new();
    let (one, other) = (
        Origin::start(&ca, ServerProtocol::Plain).await,
        Origin::start(&ca, ServerProtocol::Plain).await,
    );
    let run = TestProxy::new(&ca, plain_spec(&[&one, &other]), &[]);
    let get = |origin: &Origin, more: &str| {
        let port = origin.port;
        format!("GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n{more}\r\n")
    };
    let requests = [get(&one, ""), get(&other, ""), get(&one, "Connection: close\r\n")].concat();
    let response = send(proxy_port(&run), &requests).await;
    assert_eq!(response.matches("HTTP/1.1 200").count(), 3, "{response}");
    assert_eq!((one.requests().len(), other.requests().len()), (2, 1));
}

#[tokio::test]
async fn ambiguous_requests_are_denied() {
    let ca = Ca::new();
    let (origin, inner) = (
        Origin::start(&ca, ServerProtocol::Plain).await,
        Origin::start(&ca, ServerProtocol::H1).await,
    );
    let mut spec = intercepting(&inner);
    spec.allow_private.push(origin.authority());
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\nabcde",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "X: a\r\n b\r\n\r\n",
        "X : a\r\n\r\n",
        "X: a\nContent-Length: 0\r\n\r\n",
        "X: a\n\n",
        "Host: localhost\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5 ;x\r\nabcde\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    ] {
        let run = TestProxy::new(&ca, spec.clone(), &[]);
        let port = origin.port;
        let request = format!(
            "POST http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}"
        );
        let response = send(proxy_port(&run), &request).await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{headers:?}: {response}");

        let port = inner.port;
        let stream = tls(&run, "localhost", "localhost", port, &[H1]).await.unwrap();
        let request = format!("POST / HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}");
        let response = send(stream, &request).await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{headers:?}: {response}");
        assert_eq!(denial_reason(&run).await, DenyReason::BadRequest, "{headers:?}");
    }
    assert!(origin.requests().iter().chain(&inner.requests()).all(|received| received.length == 0));
    let whole = |origin: &Origin| origin.requests().len();
    assert_eq!((whole(&origin), whole(&inner)), (0, 0));
}

/// The counterpart: these are denied by the framing monitor, and not by hyper.
#[tokio::test]
async fn requests_that_hyper_alone_would_accept() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::Plain).await;
    let run = TestProxy::new(&ca, plain_spec(&[&origin]), &[]);
    let port = origin.port;
    for headers in [
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "X: a\n\n",
        "Transfer-Encoding: chunked\r\n\r\n5 ;x\r\nabcde\r\n0\r\n\r\n",
    ] {
        let request = format!(
            "POST http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n{headers}"
        );
        let response = send(proxy_port_with(&run, Monitoring::Off), &request).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{headers:?}: {response}");
    }
}

#[tokio::test]
async fn a_bad_request_after_a_good_one_is_denied() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::Plain).await;
    let run = TestProxy::new(&ca, plain_spec(&[&origin]), &[]);
    let port = origin.port;
    let head = format!("POST http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n");
    let mut stream = proxy_port(&run);
    for body in
        ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
    {
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut response = vec![0; 4096];
        let length = stream.read(&mut response).await.unwrap();
        assert!(response[..length].starts_with(b"HTTP/1.1 200 "));
    }
    let bad = format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n");
    let response = send(stream, &bad).await;
    assert!(response.contains("HTTP/1.1 400 "), "{response}");
    assert_eq!(origin.requests().len(), 2);
}

#[tokio::test]
async fn other_plain_requests_are_denied_with_a_text() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::Plain).await;
    let run = TestProxy::new(&ca, plain_spec(&[&origin]), &[]);
    let port = origin.port;
    for (line, host, expected, reason) in [
        (
            format!("https://localhost:{port}/"),
            format!("localhost:{port}"),
            "CONNECT",
            DenyReason::BadRequest,
        ),
        ("/".into(), "localhost".into(), "http://", DenyReason::BadRequest),
        (format!("http://localhost:{port}/"), "evil.example".into(), "", DenyReason::NamesDiffer),
        (
            format!("http://u:p@localhost:{port}/"),
            format!("localhost:{port}"),
            "",
            DenyReason::NotAName,
        ),
        ("http://127.1/".into(), "127.1".into(), "", DenyReason::NotAName),
        ("http://other.example/".into(), "other.example".into(), "", DenyReason::NotListed),
    ] {
        let request = format!("GET {line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let response = send(proxy_port(&run), &request).await;
        assert!(response.starts_with("HTTP/1.1 40"), "{line}: {response}");
        assert!(response.contains(expected), "{line}: {response}");
        assert_eq!(denial_reason(&run).await, reason, "{line}");
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn plain_http_to_port_443_is_denied() {
    let ca = Ca::new();
    let private = vec!["localhost:443".to_owned()];
    let spec = EgressSpec { allow_private: private, ..EgressSpec::default() };
    let run = TestProxy::allowing(&ca, &["a.example", "127.0.0.1:443"], spec, &[]);
    let get = |host: &str| {
        format!("GET http://{host}:443/ HTTP/1.1\r\nHost: {host}:443\r\nConnection: close\r\n\r\n")
    };
    for host in ["a.example", "127.0.0.1"] {
        let response = send(proxy_port(&run), &get(host)).await;
        assert!(
            response.starts_with("HTTP/1.1 403 ") && response.contains("goes TLS"),
            "{response}"
        );
        assert_eq!(denial_reason(&run).await, DenyReason::NotTls);
    }
    // The operator's private service is exempt.
    let response = send(proxy_port(&run), &get("localhost")).await;
    assert!(!response.contains("x-belljar-denied"), "{response}");
}

#[tokio::test]
async fn connect_in_an_intercepted_connection_is_denied() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let port = origin.port;
    let stream = tls(&run, "localhost", "localhost", port, &[H1]).await.unwrap();
    let request = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let response = send(stream, &request).await;
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}

/// The client chooses the scheme, so a secret is never sent in clear text. For a route the operator chooses it.
#[tokio::test]
async fn a_secret_is_not_sent_in_clear_text() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::Plain).await;
    let place = SecretPlace::Header { name: "x-key".into() };
    let source = SecretSource::Env { name: "KEY".into() };
    let secret =
        SecretSpec { env: "KEY".into(), host: host("localhost"), port: origin.port, place, source };
    let mut spec = plain_spec(&[&origin]);
    spec.secrets = vec![secret];
    let run = TestProxy::new(&ca, spec, &[("KEY", "canary-value-3")]);
    let port = origin.port;
    let request = format!(
        "GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    );
    assert!(send(proxy_port(&run), &request).await.starts_with("HTTP/1.1 200 "));
    assert!(!origin.requests()[0].headers.contains_key("x-key"));
}

/// The status, and the first line that a server on loopback received.
async fn first_line_at_the_host(
    allow: &[String],
    request: impl Fn(u16) -> String,
) -> (String, Option<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let length = stream.read(&mut head).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        String::from_utf8(head[..length].to_vec()).unwrap().lines().next().unwrap().to_owned()
    });
    let allow: Vec<String> =
        allow.iter().map(|rule| rule.replace("PORT", &port.to_string())).collect();
    let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
    let spec =
        EgressSpec { allow_private: vec![format!("localhost:{port}")], ..EgressSpec::default() };
    let run = TestProxy::allowing(&Ca::new(), &allow, spec, &[]);
    let response = send(proxy_port(&run), &request(port)).await;
    let status = response.split(' ').nth(1).unwrap_or_default().to_owned();
    let line = if status == "200" {
        Some(received.await.unwrap())
    } else {
        received.abort();
        None
    };
    (status, line)
}

#[tokio::test]
async fn a_target_is_sent_as_it_was_judged_or_not_at_all() {
    let host = "Connection: close\r\nHost: localhost:PORT";
    for (line, sent) in [
        ("GET http://localhost:PORT HTTP/1.1", Some("GET / HTTP/1.1")),
        ("GET http://localhost:PORT?x HTTP/1.1", Some("GET /?x HTTP/1.1")),
        ("GET http://localhost:PORT/a?b HTTP/1.1", Some("GET /a?b HTTP/1.1")),
        ("GET http://localhost:PORT#x HTTP/1.1", None),
        ("GET http://localhost:PORT/docs#/../admin HTTP/1.1", None),
        ("GET http://localhost:PORT/a\\b HTTP/1.1", None),
        ("GET http://u@localhost:PORT/ HTTP/1.1", None),
    ] {
        let request =
            |port: u16| format!("{line}\r\n{host}\r\n\r\n").replace("PORT", &port.to_string());
        let (status, received) = first_line_at_the_host(&[], request).await;
        assert_eq!(received.as_deref(), sent, "{line}: {status}");
        assert!(sent.is_some() || status.starts_with("40"), "{line}: {status}");
    }
}

#[tokio::test]
async fn overrides_of_method_or_path_are_denied_where_rules_judge_them() {
    let ask = |path: &str, header: &str| {
        let text = format!(
            "GET http://localhost:PORT{path} HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n{header}\r\n"
        );
        move |port: u16| text.replace("PORT", &port.to_string())
    };
    let ruled = ["GET localhost:PORT/docs".to_owned()];
    for (path, header) in [
        ("/docs", "X-HTTP-Method-Override: DELETE\r\n"),
        ("/docs", "x_http_method: DELETE\r\n"),
        ("/docs", "X-Original-URL: /admin\r\n"),
        ("/docs", "X-Forwarded-Prefix: /admin\r\n"),
        ("/docs?_method=DELETE", ""),
        ("/docs?a&%5fmethod=DELETE", ""),
    ] {
        assert_eq!(
            first_line_at_the_host(&ruled, ask(path, header)).await.0,
            "400",
            "{path} {header}"
        );
        // The control: without a rule on methods and paths it passes.
        assert_eq!(
            first_line_at_the_host(&[], ask(path, header)).await.0,
            "200",
            "{path} {header}"
        );
    }
    for (path, header) in [("/docs?method=x", "X-Payment-Method: x\r\n"), ("/docs/x", "")] {
        assert_eq!(first_line_at_the_host(&ruled, ask(path, header)).await.0, "200", "{path}");
    }
    for path in ["/docs/..%20/admin", "/docs/%ef%bc%8e%ef%bc%8e/admin"] {
        assert_eq!(first_line_at_the_host(&ruled, ask(path, "")).await.0, "403", "{path}");
    }
}
