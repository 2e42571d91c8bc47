//! Tests that refusals disclose nothing about the host's names, addresses and network.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use belljar_spec::egress::{
    DenyReason, EgressEvent, EgressSpec, PROXY_PORT, RouteScheme, RouteSpec, RouteTarget,
};
use hickory_resolver::proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, UnixStream};

use crate::inbound::sniff_protocol;
use crate::io::stream::Stream;
use crate::testing::client::{get, raw_route, text};
use crate::testing::dns;
use crate::testing::{Ca, Client, Origin, ServerProtocol, TestProxy, host};

/// No host has it; the client must never see it.
const INTERNAL: &str = "10.77.0.9";

/// Knows `private.example`, fails for `brokens.example`, and knows no other name.
async fn name_server() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut packet = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut packet).await.unwrap();
            let response = dns::response(&packet[..length], |name, _| match name {
                "private.example" => Ok(vec![INTERNAL.parse().unwrap()]),
                "brokens.example" => Err(ResponseCode::ServFail),
                _ => Err(ResponseCode::NXDomain),
            });
            socket.send_to(&response, from).await.unwrap();
        }
    });
    port
}

async fn run(allow: &[&str], spec: EgressSpec) -> TestProxy {
    let run = TestProxy::allowing(&Ca::new(), allow, spec, &[]);
    run.proxy.resolver.use_only_server(name_server().await);
    run
}

/// Sends this to the proxy's port and returns the whole response.
async fn send_to_proxy(run: &TestProxy, bytes: &[u8]) -> String {
    let (mut inside, outside) = UnixStream::pair().unwrap();
    let outside = OwnedFd::from(outside.into_std().unwrap());
    let stream = Stream::from_fd(outside).unwrap();
    tokio::spawn(sniff_protocol::serve(run.proxy.clone(), run.tls.clone(), stream, PROXY_PORT));
    let mut response = Vec::new();
    inside.write_all(bytes).await.unwrap();
    let _ = inside.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

fn socks(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    [&[5, 1, 0][..], &[5, 1, 0, 3, name.len() as u8], name, &443u16.to_be_bytes()].concat()
}

#[tokio::test]
async fn a_private_name_looks_like_a_missing_name() {
    let run = run(&["*"], EgressSpec::default()).await;
    let requests_for = |name: &str| {
        [
            format!("CONNECT {name}:443 HTTP/1.1\r\nConnection: close\r\n\r\n").into_bytes(),
            format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")
                .into_bytes(),
            socks(name),
        ]
    };
    // The names have the same length, so that Content-Length is the same too.
    let (private, absent, broken) = (
        requests_for("private.example"),
        requests_for("absents.example"),
        requests_for("brokens.example"),
    );
    for ((private, absent), broken) in private.iter().zip(absent).zip(broken) {
        let private = send_to_proxy(&run, private).await;
        let others = [send_to_proxy(&run, &absent).await, send_to_proxy(&run, &broken).await];
        for (other, name) in others.iter().zip(["absents.example", "brokens.example"]) {
            assert_eq!(private, other.replace(name, "private.example"));
        }
        assert!(!private.contains(INTERNAL) && !private.contains("x-belljar-denied"), "{private}");
        assert!(
            private.starts_with("HTTP/1.1 502") || private.starts_with("\u{5}\0\u{5}\u{4}"),
            "{private:?}"
        );
        // The event has all of it.
        let events = run.wait_for_events(|event| matches!(event, EgressEvent::Denied(_))).await;
        let denied = events.iter().find_map(|event| match event {
            EgressEvent::Denied(denied) => Some(denied.clone()),
            _ => None,
        });
        let denied = denied.unwrap();
        assert_eq!(denied.reason, DenyReason::PrivateAddress);
        assert_eq!(
            (denied.host.as_str(), denied.detail.as_deref()),
            ("private.example", Some(INTERNAL))
        );
    }
}

/// A closed port of this address.
async fn closed_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_failed_connection_discloses_no_address() {
    let port = closed_port().await;
    let authority = format!("localhost:{port}");
    let spec = EgressSpec { allow_private: vec![authority.clone()], ..EgressSpec::default() };
    let run = run(&[], spec).await;
    let request = format!("CONNECT {authority} HTTP/1.1\r\nConnection: close\r\n\r\n");
    let response = send_to_proxy(&run, request.as_bytes()).await;
    assert!(response.starts_with("HTTP/1.1 503") && response.contains(&authority), "{response}");
    assert!(!response.contains("127.0.0.1") && !response.contains("[::1]"), "{response}");
    let failed =
        |event: &EgressEvent| matches!(event, EgressEvent::Allowed(facts) if facts.error.is_some());
    let events = format!("{:?}", run.wait_for_events(failed).await);
    assert!(events.contains("127.0.0.1") || events.contains("[::1]"), "{events}");
}

#[tokio::test]
async fn names_in_a_wrong_certificate_are_not_disclosed() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await; // its certificate is for localhost
    let to = RouteTarget {
        scheme: RouteScheme::Https,
        host: host("127.0.0.1"),
        port: origin.port,
        path: String::new(),
    };
    let routes = vec![RouteSpec { listen: 8080, to, secret: None }];
    let run = TestProxy::new(&ca, EgressSpec { routes, ..EgressSpec::default() }, &[]);
    let mut client = Client::routed(&run, 8080).await;
    let response = text(client.send(get(8080, "/")).await).await;
    assert!(response.contains("another name") && !response.contains("localhost"), "{response}");
    let failed =
        |event: &EgressEvent| matches!(event, EgressEvent::Allowed(facts) if facts.error.is_some());
    assert!(format!("{:?}", run.wait_for_events(failed).await).contains("localhost"));
}

/// A client of a route need not know its target.
#[tokio::test]
async fn a_route_does_not_disclose_its_target() {
    let (port, name) = (closed_port().await, host("localhost"));
    let to = RouteTarget { scheme: RouteScheme::Http, host: name, port, path: "/hidden".into() };
    let spec = EgressSpec {
        allow_private: vec![format!("localhost:{port}")],
        routes: vec![RouteSpec { listen: 8080, to, secret: None }],
        ..EgressSpec::default()
    };
    let run = run(&[], spec).await;
    for (request, status) in [
        ("GET /x HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n", 503),
        ("GET /../x HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n", 403),
        ("GET /x HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n", 400),
        ("GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    ] {
        let mut stream = raw_route(&run, 8080);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        for secret in ["localhost", "127.0.0.1", "/hidden", &port.to_string()] {
            assert!(!response.contains(secret), "{secret}: {response}");
        }
    }
}
