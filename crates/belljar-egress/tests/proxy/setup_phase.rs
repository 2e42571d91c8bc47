//! What the set-up phase can reach, and that nothing of it is left when it ends.
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::hosts::{arrivals, full_backlog, get, keep_alive_http, read_response};
use crate::support::{Proxy, echo, listen, read_all, read_head, server};
use belljar_egress::ServeError;
use belljar_egress::control::{ToProxy, send};
use belljar_spec::Host;
use belljar_spec::egress::{
    Budget, DenyReason, EgressEvent, EgressPolicy, EgressSpec, Reach, RouteScheme, RouteSpec,
    RouteTarget, SecretPlace, SecretSource, SecretSpec, SecretValue,
};

const ROUTE: u16 = 8123;
const VALUE: &str = "canary-value";

fn policy(setup: &[&str], allow: &[&str], spec: EgressSpec) -> EgressPolicy {
    let owned = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
    EgressPolicy { run: "r".into(), allow: owned(allow), setup: Some(owned(setup)), spec }
}

fn start(setup: &[&str], allow: &[&str], spec: EgressSpec) -> Proxy {
    Proxy::with(policy(setup, allow, spec), Vec::new())
}

#[test]
fn setup_and_run_have_separate_rules() {
    let (one, other) = (server(echo).to_string(), server(echo).to_string());
    let mut proxy = start(&[&one], &[&other], EgressSpec::default());
    assert_eq!(proxy.connect_status(&one), "200");
    assert_eq!(proxy.connect_status(&other), "403");
    let denied = proxy.denied();
    assert_eq!(denied.reason, DenyReason::PortNotListed);
    assert!(other.ends_with(&format!(":{}", denied.port.unwrap())), "{denied:?}");
    proxy.narrow();
    assert_eq!(proxy.connect_status(&one), "403");
    assert_eq!(proxy.connect_status(&other), "200");
    let reported = proxy.end();
    let reported = serde_json::to_string(&reported).unwrap();
    assert!(reported.contains(&format!("setup {one}")), "{reported}");
    assert!(reported.contains(&format!("\"{other}\"")), "{reported}");
}

#[test]
fn an_empty_setup_list_allows_nothing_though_the_run_has_hosts() {
    let target = server(echo).to_string();
    let proxy = start(&[], &[&target], EgressSpec::default());
    assert_eq!(proxy.connect_status(&target), "403");
    proxy.narrow();
    assert_eq!(proxy.connect_status(&target), "200");
}

#[test]
fn no_connection_survives_the_setup() {
    let (echoing, http) = (server(echo).to_string(), server(keep_alive_http).to_string());
    // The run may reach both as well: connections of the set-up are closed all the same.
    let rules = [echoing.as_str(), http.as_str()];
    let proxy = start(&rules, &rules, EgressSpec::default());
    let mut tunnel = proxy.tunnel(&echoing);
    tunnel.write_all(b"hello").unwrap();
    tunnel.read_exact(&mut [0; 5]).unwrap();
    let mut keep_alive = proxy.connect();
    assert!(get(&mut keep_alive, &http).starts_with("HTTP/1.1 200"));
    let mut half_sent = proxy.connect();
    write!(half_sent, "CONNECT {echoing} HTTP/1.1\r\nHost: ").unwrap();
    let mut silent = proxy.connect();
    let mut socks = proxy.connect();
    socks.write_all(&[5, 1, 0]).unwrap();
    socks.read_exact(&mut [0; 2]).unwrap();
    let started = Instant::now();
    assert_eq!(proxy.narrow(), 5);
    for stream in [&mut tunnel, &mut keep_alive, &mut half_sent, &mut silent, &mut socks] {
        assert_eq!(read_all(stream), b"");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // The rest of the half-sent request is read by nobody.
    assert!(half_sent.write_all(b"x\r\n\r\n").is_err() || read_all(&mut half_sent).is_empty());
    assert_eq!(proxy.connect_status(&echoing), "200");
}

#[test]
fn a_dial_pending_at_the_end_of_the_setup_never_connects() {
    let dialled = |narrowed: bool| {
        let (listener, waiting) = full_backlog();
        let authority = listener.local_addr().unwrap().to_string();
        let mut proxy = start(&[&authority], &[], EgressSpec::default());
        let mut stream = proxy.connect();
        write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
        proxy.wait_for(|event| {
            matches!(event, belljar_spec::egress::EgressEvent::Opened(_)).then_some(())
        });
        std::thread::sleep(Duration::from_millis(100));
        if narrowed {
            assert_eq!(proxy.narrow(), 1);
        }
        arrivals(&listener, Duration::from_secs(4)) - waiting.len()
    };
    assert_eq!(dialled(false), 1);
    assert_eq!(dialled(true), 0);
}

#[test]
fn the_setup_gets_no_secret_and_no_route() {
    // Responses are masked, so what arrived is checked at the server.
    let arrived = Arc::new(Mutex::new(String::new()));
    let heads = arrived.clone();
    let outside = server(move |mut stream| {
        let head = read_head(&mut stream);
        heads.lock().unwrap().push_str(&head);
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"); // it may be gone
    });
    let authority = outside.to_string();
    let host = Host::Address(outside.ip());
    let secret = SecretSpec {
        env: "KEY".into(),
        host: host.clone(),
        port: outside.port(),
        place: SecretPlace::Header { name: "x-key".into() },
        source: SecretSource::Env { name: "KEY".into() },
    };
    let to =
        RouteTarget { scheme: RouteScheme::Http, host, port: outside.port(), path: String::new() };
    let spec = EgressSpec {
        secrets: vec![secret],
        routes: vec![RouteSpec { listen: ROUTE, to, secret: Some("KEY".into()) }],
        intercept: vec!["opened.example".into()],
        ..EgressSpec::default()
    };
    let placeholder = "placeholder".to_owned();
    let secrets = vec![SecretValue { env: "KEY".into(), value: VALUE.into(), placeholder }];
    let proxy = Proxy::with(policy(&[&authority], &[], spec), secrets);
    assert!(proxy.trust.is_some());
    let route = listen(&proxy.control, ROUTE);
    let request_route = || {
        let mut stream = TcpStream::connect(route).unwrap();
        stream.set_read_timeout(Some(crate::support::TIMEOUT)).unwrap();
        let _ = write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); // it may be closed
        let mut some = [0; 12];
        stream.read(&mut some).unwrap_or(0) // reset: nothing
    };
    // By its address the set-up reaches it, as any client would.
    assert!(get(&mut proxy.connect(), &authority).starts_with("HTTP/1.1 200"));
    let mut tunnel = proxy.tunnel(&authority);
    write!(tunnel, "GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    assert!(read_response(&mut tunnel).starts_with("HTTP/1.1 200"));
    assert_eq!(request_route(), 0);
    let seen = std::mem::take(&mut *arrived.lock().unwrap());
    assert_eq!(seen.matches("GET / ").count(), 2, "{seen}");
    assert!(!seen.contains(VALUE), "{seen}");
    proxy.narrow();
    assert_ne!(request_route(), 0);
    let seen = arrived.lock().unwrap().clone();
    assert!(seen.contains(VALUE), "{seen}");
}

#[test]
fn the_setup_does_not_learn_and_the_run_does() {
    let spec = EgressSpec { reach: Reach::Learn, ..EgressSpec::default() };
    let mut proxy = start(&[], &[], spec);
    assert_eq!(proxy.connect_status("learned.invalid:443"), "403");
    assert_eq!(proxy.denied().reason, DenyReason::NotListed);
    proxy.narrow();
    // Allowed, and there is no such name.
    assert_ne!(proxy.connect_status("learned.invalid:443"), "403");
}

#[test]
fn the_setup_uses_the_budgets_of_the_run() {
    let target = server(echo).to_string();
    let budget = Budget { requests: Some(2), ..Budget::default() };
    let spec = EgressSpec { budget, ..EgressSpec::default() };
    let proxy = start(&[&target], &[&target], spec);
    assert_eq!(proxy.connect_status(&target), "200");
    proxy.narrow();
    assert_eq!(proxy.connect_status(&target), "200");
    assert_eq!(proxy.connect_status(&target), "403");
}

#[test]
fn the_setup_reaches_a_private_host_only_if_its_rules_name_it() {
    let port = server(echo).port();
    let authority = format!("localhost:{port}");
    let spec = EgressSpec { allow_private: vec![authority.clone()], ..EgressSpec::default() };
    for (rules, expected) in
        [(vec![], "403"), (vec!["*"], "403"), (vec![authority.as_str()], "200")]
    {
        let proxy = start(&rules, &[], spec.clone());
        assert_eq!(proxy.connect_status(&authority), expected, "{rules:?}");
        proxy.narrow();
        assert_eq!(proxy.connect_status(&authority), "200", "{rules:?}");
    }
}

#[test]
fn an_unexpected_narrow_message_ends_the_proxy() {
    let target = server(echo).to_string();
    let once = start(&[&target], &[&target], EgressSpec::default());
    once.narrow();
    assert_eq!(once.connect_status(&target), "200");
    let never = Proxy::start(std::slice::from_ref(&target), EgressSpec::default());
    assert_eq!(never.connect_status(&target), "200");
    for proxy in [once, never] {
        send(proxy.control.as_fd(), &ToProxy::Narrow, None).unwrap();
        assert!(matches!(proxy.join(), Err(ServeError::UnexpectedMessage)));
    }
}

/// A reader of the record attributes events before the end of the set-up to the set-up.
#[test]
fn denials_of_the_setup_are_reported_before_its_end() {
    let proxy = start(&[], &["own.example:1"], EgressSpec::default());
    for _ in 0..3 {
        assert_eq!(proxy.connect_status("other.example:443"), "403");
    }
    proxy.narrow();
    let before = proxy.events_so_far();
    let count = |events: &[EgressEvent]| -> u64 {
        let one = |event: &EgressEvent| match event {
            EgressEvent::Denied(denied) => denied.count,
            _ => 0,
        };
        events.iter().map(one).sum()
    };
    assert_eq!(count(&before), 3, "{before:?}");
    // The run's first denial is reported as a first.
    assert_eq!(proxy.connect_status("other.example:443"), "403");
    assert_eq!(count(&proxy.end()), 1);
}
