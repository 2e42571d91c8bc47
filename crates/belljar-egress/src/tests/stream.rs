//! Tests bodies: streamed as they arrive, whatever their length.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use belljar_spec::egress::{Budget, EgressEvent, EgressSpec, RouteScheme, RouteSpec, RouteTarget};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::intercept::intercepting;
use crate::testing::client::{get, tls};
use crate::testing::{Ca, Client, H1, H2, Origin, ServerProtocol, TestProxy, host};

const BIG: usize = 20 * 1024 * 1024;

#[tokio::test]
async fn an_event_arrives_before_the_next_is_sent() {
    let ca = Ca::new();
    for (protocol, alpn) in [
        (ServerProtocol::H1, H1),
        (ServerProtocol::H2, H2),
        (ServerProtocol::H1, H2),
        (ServerProtocol::H2, H1),
    ] {
        let origin = Origin::start(&ca, protocol).await;
        let run = TestProxy::new(&ca, intercepting(&origin), &[]);
        let mut client = Client::intercepted(&run, origin.port, alpn).await;
        let mut request = get(origin.port, "/events");
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        let mut body = client.send(request).await.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "data: 1\n\n");
        origin.proceed.notify_one();
        let second = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(second, "data: 2\n\n");
        // HTTP/1.1 carries only trailers that were announced.
        if (protocol, alpn) == (ServerProtocol::H2, H2) {
            let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
            assert_eq!(trailers["x-trailer"], "end");
        }
        assert!(body.frame().await.is_none_or(|frame| frame.is_ok()));
    }
}

#[tokio::test]
async fn trailers_count_against_the_budget() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H2).await;
    let limited = |budget| TestProxy::new(&ca, EgressSpec { budget, ..intercepting(&origin) }, &[]);
    let hit = |what: &'static str| move |event: &EgressEvent| matches!(event, EgressEvent::BudgetHit(hit) if hit.what == what);

    let run = limited(Budget { bytes_in: Some(4000), ..Budget::default() });
    for (size, whole) in [(100, true), (5000, false)] {
        let client = Client::intercepted(&run, origin.port, H2).await;
        let Client::H2(mut sender) = client else { panic!("it does not speak HTTP/2") };
        let uri = format!("https://localhost:{}/trailers?{size}", origin.port);
        let request = Request::get(uri).body(Full::default()).unwrap();
        // A response over budget is reset, perhaps before its head was read.
        let came = match sender.send_request(request).await {
            Ok(response) => response.into_body().collect().await,
            Err(error) => Err(error),
        };
        assert_eq!(came.is_ok_and(|body| body.trailers().is_some()), whole, "{size}");
    }
    run.wait_for_events(hit("bytes_in")).await;

    let run = limited(Budget { bytes_out: Some(4000), ..Budget::default() });
    let port = origin.port;
    for (size, status) in [(100, "200"), (5000, "502")] {
        let mut stream = tls(&run, "localhost", "localhost", port, &[H1]).await.unwrap();
        let request = format!(
            "POST /upload HTTP/1.1\r\nHost: localhost:{port}\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n1\r\nx\r\n0\r\nX-T: {}\r\n\r\n",
            "t".repeat(size)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = vec![0; 12];
        stream.read_exact(&mut response).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&response), format!("HTTP/1.1 {status}"), "{size}");
    }
    run.wait_for_events(hit("bytes_out")).await;
}

#[tokio::test]
async fn large_bodies_pass_in_both_directions() {
    let ca = Ca::new();
    for (protocol, alpn) in [
        (ServerProtocol::H1, H1),
        (ServerProtocol::H2, H2),
        (ServerProtocol::H1, H2),
        (ServerProtocol::H2, H1),
    ] {
        let origin = Origin::start(&ca, protocol).await;
        let run = TestProxy::new(&ca, intercepting(&origin), &[]);
        let mut client = Client::intercepted(&run, origin.port, alpn).await;
        let (status, body) = client.get(origin.port, &format!("/big?{BIG}")).await;
        assert_eq!((status, body.len()), (200, BIG));
        let request = Request::post("/upload")
            .header("host", origin.authority())
            .body(Full::new(Bytes::from(vec![b'y'; BIG])))
            .unwrap();
        assert_eq!(client.send(request).await.status(), 200);
        assert_eq!(origin.requests()[1].length, BIG);
        assert_eq!(origin.requests()[1].headers["content-length"], BIG.to_string());
    }
}

#[tokio::test]
async fn a_websocket_passes_in_both_directions() {
    let ca = Ca::new();
    for protocol in [ServerProtocol::H1, ServerProtocol::H2] {
        let origin = Origin::start(&ca, protocol).await;
        let run = TestProxy::new(&ca, intercepting(&origin), &[]);
        let mut client = Client::intercepted(&run, origin.port, H1).await;
        let mut request = get(origin.port, "/ws");
        for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket")] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request.headers_mut().insert("sec-websocket-key", "x".parse().unwrap());
        let mut response = client.send(request).await;
        assert_eq!(response.status(), 101);
        assert_eq!(response.headers()["sec-websocket-accept"], "x");
        let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
        let mut stream = TokioIo::new(upgraded);
        for text in ["one", "another"] {
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut response = vec![0; text.len()];
            stream.read_exact(&mut response).await.unwrap();
            assert_eq!(response, text.as_bytes());
        }
        assert_eq!(origin.requests()[0].headers["sec-websocket-key"], "x");
        drop(stream);
        let denial_reason = |event: &EgressEvent| matches!(event, EgressEvent::Allowed(facts) if facts.status == Some(101));
        run.wait_for_events(denial_reason).await;
    }
}

#[tokio::test]
async fn a_connection_that_the_host_closed_is_replaced() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    for _ in 0..3 {
        assert_eq!(client.get(origin.port, "/close").await.0, 200);
    }
    assert_eq!((origin.requests().len(), origin.connections()), (3, 3));
}

/// A host that responds once per connection, and keeps it open as if it would go on.
async fn responds_once() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                assert!(stream.read(&mut buffer).await.unwrap() > 0);
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                stream.write_all(response).await.unwrap();
                let _ = stream.read(&mut buffer).await; // the next request, which gets no response
            });
        }
    });
    (port, accepted)
}

#[tokio::test]
async fn safe_requests_are_retried_when_a_reused_connection_dies() {
    let (port, accepted) = responds_once().await;
    let to = RouteTarget {
        scheme: RouteScheme::Http,
        host: host("localhost"),
        port,
        path: String::new(),
    };
    let spec = EgressSpec {
        allow_private: vec![format!("localhost:{port}")],
        routes: vec![RouteSpec { listen: 8080, to, secret: None }],
        ..EgressSpec::default()
    };
    let run = TestProxy::new(&Ca::new(), spec, &[]);
    let mut client = Client::routed(&run, 8080).await;
    for _ in 0..3 {
        assert_eq!(client.get(8080, "/").await, (200, "ok".to_owned()));
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 3);
    let post = Request::post("/").header("host", "localhost:8080").body(Full::default()).unwrap();
    assert_eq!(client.send(post).await.status(), 502, "it may have been done");
}
