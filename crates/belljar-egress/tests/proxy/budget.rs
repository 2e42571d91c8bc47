//! Budgets are exact to the byte, and reported once.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Proxy, echo, read_all, server};
use belljar_spec::egress::{Budget, EgressBudgetHit, EgressEvent, EgressSpec};

fn with(budget: Budget) -> EgressSpec {
    EgressSpec { budget, ..EgressSpec::default() }
}

fn hits(events: &[EgressEvent]) -> Vec<EgressBudgetHit> {
    let hit = |event: &EgressEvent| match event {
        EgressEvent::BudgetHit(hit) => Some(hit.clone()),
        _ => None,
    };
    events.iter().filter_map(hit).collect()
}

fn hit(what: &str, limit: u64, host: Option<&str>) -> EgressBudgetHit {
    EgressBudgetHit { what: what.to_owned(), limit, host: host.map(str::to_owned) }
}

#[test]
fn no_more_bytes_leave_than_the_budget_allows() {
    let seen = Arc::new(AtomicUsize::new(0));
    let outside = server({
        let seen = seen.clone();
        move |mut stream: TcpStream| {
            let mut buffer = [0; 4096];
            while let Ok(got @ 1..) = stream.read(&mut buffer) {
                seen.fetch_add(got, Ordering::SeqCst);
            }
        }
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let spec = with(Budget { bytes_out: Some(100_000), ..Budget::default() });
    let mut proxy = Proxy::start(std::slice::from_ref(&authority), spec);
    for _ in 0..3 {
        let mut stream = proxy.tunnel(&authority);
        let _ = stream.write_all(&[0; 1_000_000]);
        assert!(read_all(&mut stream).is_empty());
    }
    let error = proxy.wait_for(|event| match event {
        EgressEvent::Allowed(allowed) => allowed.error.clone(),
        _ => None,
    });
    assert!(error.contains("bytes_out"), "{error}");
    assert_eq!(hits(&proxy.end()), [hit("bytes_out", 100_000, None)]);
    assert!(seen.load(Ordering::SeqCst) <= 100_000);
}

#[test]
fn no_more_bytes_arrive_than_the_budget_allows() {
    let outside = server(|mut stream: TcpStream| {
        let _ = stream.write_all(&[1; 1_000_000]);
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let per_host = Budget { bytes_in: Some(300_000), ..Budget::default() };
    let proxy = Proxy::start(
        std::slice::from_ref(&authority),
        EgressSpec { per_host, ..EgressSpec::default() },
    );
    let got = read_all(&mut proxy.tunnel(&authority)).len();
    assert!((100_000..=300_000).contains(&got), "{got}");
    assert_eq!(hits(&proxy.end()), [hit("bytes_in", 300_000, Some("127.0.0.1"))]);
}

#[test]
fn requests_and_connections_are_counted() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let connect = format!("CONNECT {authority} HTTP/1.1\r\n\r\n");
    let spec = with(Budget { requests: Some(2), connections: Some(2), ..Budget::default() });
    let mut proxy = Proxy::start(std::slice::from_ref(&authority), spec);
    let (first, second) = (proxy.tunnel(&authority), proxy.connect());
    // The third exceeds the limit, whatever it asks for.
    let mut third = proxy.connect();
    let refused = String::from_utf8(read_all(&mut third)).unwrap();
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(refused.contains("x-belljar-denied: budget\r\n"), "{refused}");
    drop((first, second));
    proxy.wait_for(|event| matches!(event, EgressEvent::Allowed(_)).then_some(()));
    // The first is closed, so there is room again, for one more request.
    let mut again = proxy.connect();
    again.write_all(connect.as_bytes()).unwrap();
    assert!(crate::support::read_head(&mut again).starts_with("HTTP/1.1 200"));
    again.shutdown(Shutdown::Write).unwrap();
    read_all(&mut again);
    let response = proxy.exchange(connect.as_bytes());
    assert!(response.contains("requests of the run reached the limit of 2"), "{response}");
    let events = proxy.end();
    assert_eq!(hits(&events), [hit("connections", 2, None), hit("requests", 2, None)]);
}
