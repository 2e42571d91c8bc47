//! Tests routes: a plain HTTP port in the sandbox, TLS and a secret towards the host.

use belljar_spec::egress::{
    EgressEvent, EgressSpec, RouteScheme, RouteSpec, RouteTarget, SecretPlace, Via,
};
use http_body_util::BodyExt;

use super::secret::secret;
use crate::testing::client::get;
use crate::testing::{Ca, Client, Origin, ServerProtocol, TestProxy, host};

const VALUE: &str = "canary-value-2";

fn routed(origin: &Origin, scheme: RouteScheme, path: &str) -> EgressSpec {
    let to = RouteTarget { scheme, host: host("localhost"), port: origin.port, path: path.into() };
    EgressSpec {
        allow_private: vec![origin.authority()],
        secrets: vec![secret(origin.port, SecretPlace::Bearer)],
        routes: vec![RouteSpec { listen: 8080, to, secret: Some("KEY".into()) }],
        ..EgressSpec::default()
    }
}

#[tokio::test]
async fn a_route_forwards_to_its_target_with_its_secret() {
    let ca = Ca::new();
    for (protocol, scheme) in [
        (ServerProtocol::H1, RouteScheme::Https),
        (ServerProtocol::H2, RouteScheme::Https),
        (ServerProtocol::Plain, RouteScheme::Http),
    ] {
        let origin = Origin::start(&ca, protocol).await;
        let run = TestProxy::new(&ca, routed(&origin, scheme, "/v1"), &[("KEY", VALUE)]);
        assert!(run.tls.trust().is_none(), "a route needs no interception");
        let mut client = Client::routed(&run, 8080).await;
        let (status, body) = client.get(8080, "/a?b=c").await;
        assert_eq!(status, 200, "{body}");
        assert!(!body.contains(VALUE), "{body}");
        let received = &origin.requests()[0];
        assert!(received.uri.ends_with("/v1/a?b=c"), "{}", received.uri);
        assert_eq!(received.headers["authorization"], format!("Bearer {VALUE}"));
        if protocol != ServerProtocol::H2 {
            assert_eq!(received.headers["host"], origin.authority());
        }
        let denial_reason = |event: &EgressEvent| matches!(event, EgressEvent::Allowed(facts) if facts.via == Via::Route);
        let events = run.wait_for_events(denial_reason).await;
        assert!(format!("{events:?}").contains("route 8080"), "{events:?}");
        assert!(!format!("{events:?}").contains(VALUE));
    }
}

#[tokio::test]
async fn a_rebound_web_page_is_refused() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, routed(&origin, RouteScheme::Https, ""), &[("KEY", VALUE)]);
    let mut client = Client::routed(&run, 8080).await;
    let mut request = get(8080, "/");
    request.headers_mut().insert("host", "rebound.example:8080".parse().unwrap());
    assert_eq!(client.send(request).await.status(), 400);
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_redirect_within_the_target_stays_on_the_route() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let run = TestProxy::new(&ca, routed(&origin, RouteScheme::Https, ""), &[("KEY", VALUE)]);
    let mut client = Client::routed(&run, 8080).await;
    for (to, expected) in [
        (format!("https://localhost:{}/x", origin.port), "http://localhost:8080/x"),
        ("https://other.example/x".to_owned(), "https://other.example/x"),
    ] {
        let response = client.send(get(8080, &format!("/redirect?{to}"))).await;
        assert_eq!(response.headers()["location"], expected);
    }
}

#[tokio::test]
async fn events_pass_a_route_one_by_one() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H2).await;
    let run = TestProxy::new(&ca, routed(&origin, RouteScheme::Https, ""), &[("KEY", VALUE)]);
    let mut client = Client::routed(&run, 8080).await;
    let mut body = client.send(get(8080, "/events")).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
    origin.proceed.notify_one();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 2\n\n");
}

#[tokio::test]
async fn a_secret_of_another_host_is_not_used() {
    let ca = Ca::new();
    let origin = Origin::start(&ca, ServerProtocol::H1).await;
    let mut spec = routed(&origin, RouteScheme::Https, "");
    spec.secrets[0].host = host("other.example");
    let run = TestProxy::new(&ca, spec, &[("KEY", VALUE)]);
    let mut client = Client::routed(&run, 8080).await;
    assert_eq!(client.get(8080, "/").await.0, 502);
    assert_eq!(origin.connections(), 0);
}
