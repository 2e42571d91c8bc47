//! Tests TLS interception: trust, names, and what the host receives.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use belljar_spec::egress::{DenyReason, EgressEvent, EgressSpec};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::testing::client::{get, raw_intercepted, text, tls};
use crate::testing::{Ca, Client, H1, H2, Origin, ServerProtocol, TestProxy};

pub(super) fn intercepting(origin: &Origin) -> EgressSpec {
    EgressSpec {
        allow_private: vec![origin.authority()],
        intercept: vec!["localhost".into()],
        ..EgressSpec::default()
    }
}

#[tokio::test]
async fn each_http_version_reaches_each_http_version() {
    let ca = Ca::new();
    for protocol in [ServerProtocol::H1, ServerProtocol::H2] {
        for alpn in [H1, H2] {
            let origin = Origin::start(&ca, protocol).await;
            let run = TestProxy::new(&ca, intercepting(&origin), &[]);
            let mut client = Client::intercepted(&run, origin.port, alpn).await;
            for _ in 0..3 {
                let (status, body) = client.get(origin.port, "/path?query=1").await;
                assert_eq!(status, 200, "{body}");
            }
            assert_eq!(origin.connections(), 1, "{protocol:?} {alpn:?}");
            let requests = origin.requests();
            assert_eq!(requests.len(), 3);
            let uri = &requests[0].uri;
            assert!(uri.ends_with("/path?query=1"), "{uri}");
            for name in ["via", "x-forwarded-for", "forwarded"] {
                assert!(!requests[0].headers.contains_key(name));
            }
        }
    }
}

#[tokio::test]
async fn concurrent_requests_get_their_responses() {
    let ca = Ca::new();
    for protocol in [ServerProtocol::H1, ServerProtocol::H2] {
        let origin = Origin::start(&ca, protocol).await;
        let run = TestProxy::new(&ca, intercepting(&origin), &[]);
        let Client::H2(sender) = Client::intercepted(&run, origin.port, H2).await else { panic!() };
        let one = |size: usize| {
            let mut client = Client::H2(sender.clone());
            let port = origin.port;
            async move { client.get(port, &format!("/big?{size}")).await.1.len() }
        };
        let all = futures_util::future::join_all((1..20).map(|at| one(at * 1000))).await;
        assert_eq!(all, (1..20).map(|at| at * 1000).collect::<Vec<_>>());
        let most = if protocol == ServerProtocol::H2 { 1 } else { 19 };
        assert!(origin.connections() <= most, "{}", origin.connections());
    }
}

#[tokio::test]
async fn concurrent_requests_share_one_failed_dial() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(stream);
            });
        }
    });
    let spec = EgressSpec {
        allow_private: vec![format!("localhost:{port}")],
        intercept: vec!["localhost".into()],
        ..EgressSpec::default()
    };
    let run = TestProxy::new(&Ca::new(), spec, &[]);
    let Client::H2(sender) = Client::intercepted(&run, port, H2).await else { panic!() };
    let one = |_| {
        let mut client = Client::H2(sender.clone());
        async move { client.get(port, "/").await }
    };
    let started = Instant::now();
    let all = futures_util::future::join_all((0..8).map(one)).await;
    assert!(all.iter().all(|(status, message)| *status == 502 && message == &all[0].1), "{all:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // A later request tries again.
    let started = Instant::now();
    assert_eq!(one(8).await.0, 502);
    assert!(started.elapsed() >= Duration::from_secs(1));
    let failed =
        |event: &EgressEvent| matches!(event, EgressEvent::Allowed(facts) if facts.error.is_some());
    let events = run.wait_for_events(|_| true).await;
    assert_eq!(events.iter().filter(|event| failed(event)).count(), 9, "{events:?}");
}

#[tokio::test]
async fn every_request_is_reported() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H2).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let (_, body) = client.get(origin.port, "/some?token=not-for-the-record").await;
    let events = run.wait_for_events(|event| matches!(event, EgressEvent::Allowed(_))).await;
    let Some(EgressEvent::Allowed(facts)) = events.last() else { panic!("{events:?}") };
    assert_eq!(facts.path.as_deref(), Some("/some"));
    assert_eq!(facts.method.as_deref(), Some("GET"));
    assert_eq!(facts.status, Some(200));
    // Heads are counted too.
    assert!(facts.bytes_in > body.len() as u64 && facts.bytes_out > 30, "{facts:?}");
    assert!(facts.address.is_some());
    assert!(!format!("{events:?}").contains("not-for-the-record"));
}

#[tokio::test]
async fn an_unlisted_request_is_denied_before_connecting() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let spec = EgressSpec { intercept: vec!["localhost".into()], ..EgressSpec::default() };
    let rule = format!("GET localhost:{}/v1", origin.port);
    let run = TestProxy::allowing(&ca, &[&rule], spec, &[]);
    let mut client = Client::intercepted(&run, origin.port, H2).await;
    let (status, message) = client.get(origin.port, "/v2").await;
    assert_eq!(status, 403, "{message}");
    assert!(message.contains("/v2") || message.contains("localhost"), "{message}");
    assert_eq!(origin.connections(), 0);
    run.wait_for_events(|event| matches!(event, EgressEvent::Denied(denied) if denied.reason == DenyReason::RequestNotListed)).await;
}

async fn reason(run: &TestProxy) -> (DenyReason, Option<String>) {
    let events = run.wait_for_events(|event| matches!(event, EgressEvent::Denied(_))).await;
    let denied = events.iter().find_map(|event| match event {
        EgressEvent::Denied(denied) => Some((denied.reason, denied.detail.clone())),
        _ => None,
    });
    denied.unwrap()
}

#[tokio::test]
async fn names_that_differ_are_denied() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    assert!(tls(&run, "localhost", "other.example", origin.port, &[H1]).await.is_err());
    assert_eq!(reason(&run).await, (DenyReason::NamesDiffer, Some("other.example".into())));
    assert!(tls(&run, "api.example", "127.0.0.1", origin.port, &[H1]).await.is_err());
    assert_eq!(reason(&run).await, (DenyReason::NamesDiffer, Some("(none)".into())));
    for alpn in [H1, H2] {
        let mut client = Client::intercepted(&run, origin.port, alpn).await;
        let mut request = get(origin.port, "/");
        request.headers_mut().insert("host", "other.example".parse().unwrap());
        let response = client.send(request).await;
        assert_eq!(response.status(), 400, "{}", text(response).await);
        assert_eq!(reason(&run).await.0, DenyReason::NamesDiffer);
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn input_that_is_not_tls_is_denied() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let mut stream = raw_intercepted(&run, "localhost", origin.port);
    stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    assert_eq!(reason(&run).await.0, DenyReason::NotTls);
}

/// Clients open connections ahead of need, and close those that they do not need.
#[tokio::test]
async fn a_connection_closed_before_its_first_byte_is_not_a_denial() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    drop(raw_intercepted(&run, "localhost", origin.port));
    let events = run.wait_for_events(|_| true).await;
    let [EgressEvent::Allowed(facts)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(facts.error.as_deref(), Some("closed by the client before it sent anything"));
    assert_eq!((facts.host.as_str(), facts.port), ("localhost", origin.port));
    assert_eq!(facts.rule, format!("allow_private localhost:{}", origin.port));
    assert_eq!((facts.bytes_out, facts.bytes_in, facts.address), (0, 0, None));
    assert_eq!(origin.connections(), 0);
    // The control: with one byte that is not TLS it is a denial.
    let mut stream = raw_intercepted(&run, "localhost", origin.port);
    stream.write_all(b"x").await.unwrap();
    drop(stream);
    assert_eq!(reason(&run).await.0, DenyReason::NotTls);
}

#[tokio::test]
async fn a_host_with_an_untrusted_certificate_is_refused() {
    let (ca, other) = (Ca::new(), Ca::new());
    let origin = Origin::start(&other, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let (status, message) = client.get(origin.port, "/").await;
    assert_eq!(status, 502);
    assert!(message.contains("certificate"), "{message}");
    assert!(origin.requests().is_empty());
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_response_are_removed() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, intercepting(&origin), &[]);
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let response = client.send(get(origin.port, "/hop")).await;
    let headers = response.headers();
    assert_eq!(headers["x-yours"], "2");
    assert!(!headers.contains_key("x-mine") && !headers.contains_key("proxy-authenticate"));
    let response = client.send(get(origin.port, "/switch")).await;
    assert_eq!(response.status(), 502);
}

/// A client that trusts the authority trusts it for the names of the run only.
#[tokio::test]
async fn the_authority_is_valid_for_its_names_only() {
    let verdict = |names: &[&str], host: &str| {
        let intercept = names.iter().map(|name| (*name).to_owned()).collect();
        let run =
            TestProxy::new(&Ca::new(), EgressSpec { intercept, ..EgressSpec::default() }, &[]);
        let host = host.to_owned();
        async move {
            let name = host.trim_matches(['[', ']']).to_owned();
            tls(&run, &host, &name, 443, &[H1]).await.map(drop)
        }
    };
    for (names, host) in [
        (&["api.example"][..], "api.example"),
        (&["api.example"], "below.api.example"),
        (&["*.example"], "any.thing.example"),
        (&["*"], "any.thing.example"),
        (&["10.0.0.1"], "10.0.0.1"),
        (&["[2001:db8::1]"], "[2001:db8::1]"),
        (&["api.example", "10.0.0.1"], "api.example"),
        (&["api.example", "10.0.0.1"], "10.0.0.1"),
    ] {
        verdict(names, host).await.unwrap_or_else(|error| panic!("{names:?} {host}: {error}"));
    }
    for (names, host) in [
        (&["api.example"][..], "other.example"),
        (&["api.example"], "badapi.example"),
        (&["*.example"], "api.test"),
        (&["api.example"], "10.0.0.1"),
        (&["api.example"], "[2001:db8::1]"),
        (&["*"], "10.0.0.1"),
        (&["10.0.0.1"], "api.example"),
        (&["10.0.0.1"], "10.0.0.2"),
        (&["10.0.0.1"], "[2001:db8::1]"),
    ] {
        let error = verdict(names, host).await.expect_err(host);
        assert!(error.to_string().contains("NameConstraint"), "{names:?} {host}: {error}");
    }
}

#[test]
fn without_interception_there_is_no_authority() {
    let run = TestProxy::new(&Ca::new(), EgressSpec::default(), &[]);
    assert!(run.tls.trust().is_none());
}

#[test]
fn the_trust_message_has_the_certificate_and_no_key() {
    let spec = EgressSpec { intercept: vec!["api.example".into()], ..EgressSpec::default() };
    let pem = TestProxy::new(&Ca::new(), spec, &[]).tls.trust().unwrap().ca_certificate;
    assert_eq!(CertificateDer::pem_slice_iter(pem.as_bytes()).count(), 1);
    assert!(!pem.contains("KEY"), "{pem}");
}
