//! Tests the resolver against a local name server.

use std::collections::HashMap;

use hickory_resolver::config::ConnectionConfig;
use hickory_resolver::proto::op::ResponseCode;
use tokio::net::UdpSocket;

use super::*;
use crate::testing::dns;

/// Answers each query with the next of its answers, and repeats the last.
async fn name_server(mut names: HashMap<&'static str, Vec<Vec<&'static str>>>) -> TokioResolver {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut packet = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut packet).await.unwrap();
            let response = dns::response(&packet[..length], |name, record_type| {
                let answers = names.get_mut(name).ok_or(ResponseCode::NXDomain)?;
                let current = answers[0].clone();
                // Both families are queried; the answer changes after the second.
                if record_type == RecordType::AAAA && answers.len() > 1 {
                    answers.remove(0);
                }
                Ok(current.iter().map(|address| address.parse().unwrap()).collect())
            });
            socket.send_to(&response, from).await.unwrap();
        }
    });
    let mut connection = ConnectionConfig::udp();
    connection.port = port;
    let server = NameServerConfig::new(Ipv4Addr::LOCALHOST.into(), true, vec![connection]);
    resolver(vec![server], ResolverOpts::default()).unwrap()
}

async fn public(resolver: &TokioResolver, name: &str) -> Result<Vec<String>, ResolveError> {
    let found = checked(lookup(resolver, name).await?, AddressScope::Public)?;
    Ok(found.iter().map(IpAddr::to_string).collect())
}

#[tokio::test]
async fn one_forbidden_address_makes_the_name_denied() {
    let resolver = name_server(HashMap::from([
        ("good.example", vec![vec!["93.184.216.34", "1.1.1.1", "2606:4700::1"]]),
        ("mixed.example", vec![vec!["93.184.216.34", "10.0.0.1"]]),
        ("mixed6.example", vec![vec!["93.184.216.34", "::1"]]),
        ("mapped.example", vec![vec!["::ffff:169.254.169.254"]]),
        ("empty.example", vec![vec![]]),
    ]))
    .await;
    let good = public(&resolver, "good.example").await.unwrap();
    assert_eq!(good, ["93.184.216.34", "1.1.1.1", "2606:4700::1"]);
    for (name, bad) in [
        ("mixed.example", "10.0.0.1"),
        ("mixed6.example", "::1"),
        ("mapped.example", "::ffff:169.254.169.254"),
    ] {
        let refused = public(&resolver, name).await;
        assert_eq!(refused, Err(ResolveError::NotAllowed(bad.parse().unwrap())), "{name}");
    }
    for name in ["none.example", "empty.example"] {
        let missing = public(&resolver, name).await;
        assert!(matches!(missing, Err(ResolveError::NotFound(_))), "{name} {missing:?}");
    }
}

#[tokio::test]
async fn a_name_that_changes_is_checked_each_time() {
    let answers = vec![vec!["93.184.216.34"], vec!["127.0.0.1"]];
    let resolver = name_server(HashMap::from([("rebind.example", answers)])).await;
    assert_eq!(public(&resolver, "rebind.example").await.unwrap(), ["93.184.216.34"]);
    let second = public(&resolver, "rebind.example").await;
    assert_eq!(second, Err(ResolveError::NotAllowed(Ipv4Addr::LOCALHOST.into())));
}

#[tokio::test]
async fn a_silent_name_server_times_out() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut connection = ConnectionConfig::udp();
    connection.port = socket.local_addr().unwrap().port();
    let server = NameServerConfig::new(Ipv4Addr::LOCALHOST.into(), true, vec![connection]);
    let resolver = resolver(vec![server], ResolverOpts::default()).unwrap();
    let started = std::time::Instant::now();
    lookup(&resolver, "a.example").await.unwrap_err();
    assert!(started.elapsed() < LOOKUP_TIMEOUT + QUERY_TIMEOUT);
}

#[tokio::test]
async fn localhost_resolves_only_for_private_services() {
    let resolver = Resolver::default();
    for name in ["localhost", "a.localhost"] {
        let refused = resolver.addresses(name, AddressScope::Public).await;
        assert!(matches!(refused, Err(ResolveError::NotFound(_))), "{refused:?}");
        let local = resolver.addresses(name, AddressScope::Private).await.unwrap();
        assert!(!local.is_empty() && local.iter().all(IpAddr::is_loopback), "{local:?}");
    }
}

#[test]
fn the_hosts_file_gives_both_families() {
    let mut hosts = Hosts::default();
    let text = "10.1.2.3 db db.example # a comment\nfd12::3 DB.example\n";
    hosts.read_hosts_conf(text.as_bytes()).unwrap();
    let shown = |name| listed(&hosts, name).iter().map(IpAddr::to_string).collect::<Vec<_>>();
    assert_eq!(shown("db.example"), ["10.1.2.3", "fd12::3"]);
    assert_eq!(shown("db"), ["10.1.2.3"]);
    assert!(shown("example").is_empty());
}
