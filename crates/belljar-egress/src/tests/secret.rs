//! Tests which requests get a secret, and that it never comes back.

use belljar_spec::Host;
use belljar_spec::egress::{EgressEvent, EgressSpec, Reach, SecretPlace, SecretSource, SecretSpec};

use crate::testing::client::{get, text};
use crate::testing::{Ca, Client, H1, H2, Origin, ServerProtocol, TestProxy, host};

const VALUE: &str = "canary-value-1";

pub(super) fn secret(port: u16, place: SecretPlace) -> SecretSpec {
    let source = SecretSource::Env { name: "KEY".into() };
    SecretSpec { env: "KEY".into(), host: host("localhost"), port, place, source }
}

fn with_secret(origins: &[&Origin], secret: SecretSpec) -> EgressSpec {
    EgressSpec {
        allow_private: origins.iter().map(|origin| origin.authority()).collect(),
        intercept: vec!["localhost".into()],
        secrets: vec![secret],
        ..EgressSpec::default()
    }
}

fn x_key() -> SecretPlace {
    SecretPlace::Header { name: "x-key".into() }
}

#[tokio::test]
async fn a_secret_can_be_in_each_place() {
    let ca = Ca::new();
    let basic = SecretPlace::Basic { user: "me".into() };
    let query = SecretPlace::Query { name: "key".into() };
    let basic_value = "Basic bWU6Y2FuYXJ5LXZhbHVlLTE=";
    for (place, name, expected) in [
        (x_key(), "x-key", VALUE),
        (SecretPlace::Bearer, "authorization", "Bearer canary-value-1"),
        (basic, "authorization", basic_value),
        (query, "", ""),
    ] {
        for (protocol, alpn) in [(ServerProtocol::H1, H1), (ServerProtocol::H2, H2)] {
            let origin = Origin::start(&ca, protocol).await;
            let spec = with_secret(&[&origin], secret(origin.port, place.clone()));
            let run = TestProxy::new(&ca, spec, &[("KEY", VALUE)]);
            let mut client = Client::intercepted(&run, origin.port, alpn).await;
            let (status, body) = client.get(origin.port, "/a?b=1").await;
            assert_eq!(status, 200, "{body}");
            let received = &origin.requests()[0];
            if name.is_empty() {
                assert!(received.uri.ends_with("/a?b=1&key=canary-value-1"), "{}", received.uri);
            } else {
                assert_eq!(received.headers[name], expected);
            }
            assert!(!body.contains("canary-value"), "{body}");
        }
    }
}

#[tokio::test]
async fn another_port_gets_no_secret_and_a_redirect_carries_none() {
    let ca = Ca::new();
    let (target, other) = (
        Origin::start(&ca, ServerProtocol::H1).await,
        Origin::start(&ca, ServerProtocol::H1).await,
    );
    let run = TestProxy::new(
        &ca,
        with_secret(&[&target, &other], secret(target.port, x_key())),
        &[("KEY", VALUE)],
    );
    let mut client = Client::intercepted(&run, target.port, H1).await;
    let to = format!("https://localhost:{}/", other.port);
    let response = client.send(get(target.port, &format!("/redirect?{to}"))).await;
    assert_eq!(response.headers()["location"], to);
    assert_eq!(target.requests()[0].headers["x-key"], VALUE);
    let mut client = Client::intercepted(&run, other.port, H1).await;
    let mut request = get(other.port, "/");
    request.headers_mut().insert("x-key", "placeholder-KEY".parse().unwrap());
    assert_eq!(client.send(request).await.status(), 200);
    assert_eq!(other.requests()[0].headers["x-key"], "placeholder-KEY");
    assert!(!format!("{:?}", other.requests()).contains(VALUE));
}

#[tokio::test]
async fn a_secret_in_a_response_is_masked_and_reported() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H2).await;
    let run = TestProxy::new(
        &ca,
        with_secret(&[&origin], secret(origin.port, x_key())),
        &[("KEY", VALUE)],
    );
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let mut request = get(origin.port, "/");
    request.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
    request.headers_mut().insert("range", "bytes=0-9".parse().unwrap());
    let response = client.send(request).await;
    let header = response.headers()["x-received"].to_str().unwrap().to_owned();
    let body = text(response).await;
    for seen in [header, body] {
        assert!(seen.contains("**************") && !seen.contains(VALUE), "{seen}");
    }
    assert_eq!(origin.requests()[0].headers["accept-encoding"], "identity");
    assert!(!origin.requests()[0].headers.contains_key("range"));
    let events = run
        .wait_for_events(|event| matches!(event, EgressEvent::SecretMasked { count: 2, .. }))
        .await;
    assert!(!format!("{events:?}").contains(VALUE));
}

#[tokio::test]
async fn a_compressed_response_is_refused_where_a_secret_was_sent() {
    let ca = Ca::new();
    for protocol in [ServerProtocol::H1, ServerProtocol::H2] {
        let origin = Origin::start(&ca, protocol).await;
        let spec = with_secret(&[&origin], secret(origin.port, x_key()));
        let run = TestProxy::new(&ca, spec.clone(), &[("KEY", VALUE)]);
        let mut client = Client::intercepted(&run, origin.port, H1).await;
        for coding in ["gzip", "br", "identity,gzip"] {
            let (status, message) = client.get(origin.port, &format!("/coded?{coding}")).await;
            assert_eq!(status, 502, "{message}");
            assert!(message.contains("compressed"), "{message}");
        }
        let (status, body) = client.get(origin.port, "/coded?Identity").await;
        assert_eq!((status, body.as_str()), (200, "nobody can read this"));
        // Without a secret the encoding does not matter.
        let run = TestProxy::new(&ca, EgressSpec { secrets: Vec::new(), ..spec }, &[]);
        let mut client = Client::intercepted(&run, origin.port, H1).await;
        assert_eq!(client.get(origin.port, "/coded?gzip").await.0, 200);
    }
}

#[tokio::test]
async fn a_secret_without_a_value_stops_the_request() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, with_secret(&[&origin], secret(origin.port, x_key())), &[]);
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let (status, message) = client.get(origin.port, "/").await;
    assert_eq!(status, 502, "{message}");
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn trace_is_denied_where_a_secret_is_sent() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(
        &ca,
        with_secret(&[&origin], secret(origin.port, x_key())),
        &[("KEY", VALUE)],
    );
    let mut client = Client::intercepted(&run, origin.port, H1).await;
    let mut request = get(origin.port, "/");
    *request.method_mut() = hyper::Method::TRACE;
    assert_eq!(client.send(request).await.status(), 400);
    assert!(origin.requests().is_empty());
}

#[test]
fn a_secret_makes_its_host_intercepted() {
    let spec = EgressSpec {
        reach: Reach::Listed,
        secrets: vec![secret(443, SecretPlace::Bearer)],
        ..EgressSpec::default()
    };
    let run = TestProxy::new(&Ca::new(), spec, &[("KEY", VALUE)]);
    assert!(run.tls.trust().is_some());
    assert!(run.proxy.policy().intercepts(&Host::Name("localhost".into()), 443));
}
