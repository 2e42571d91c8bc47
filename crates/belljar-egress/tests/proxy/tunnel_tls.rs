//! The first bytes of a tunnel must be for its host.
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use crate::support::{Proxy, echo, private, read_all, server};
use belljar_spec::egress::{DenyReason, EgressEvent, EgressSpec};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

fn hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn send(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    let _ = stream.shutdown(Shutdown::Write);
    read_all(&mut stream)
}

#[test]
fn the_server_name_agrees_with_the_target() {
    let outside = server(echo);
    let authority = format!("localhost:{}", outside.port());
    let mut proxy = Proxy::start(&[], private(std::slice::from_ref(&authority)));
    let good = hello("localhost");
    assert!(send(proxy.tunnel(&authority), &good) == good);
    // In pieces too.
    let mut stream = proxy.tunnel(&authority);
    stream.set_nodelay(true).unwrap();
    for piece in good.chunks(40) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(send(stream, b"") == good);

    assert!(send(proxy.tunnel(&authority), &hello("other.example")).is_empty());
    let denied = proxy.denied();
    assert_eq!((denied.reason, denied.host.as_str()), (DenyReason::NamesDiffer, "localhost"));
    assert!(denied.detail.unwrap().contains("other.example"));
    let out = |event: &EgressEvent| match event {
        EgressEvent::Allowed(allowed) if allowed.error.is_some() => Some(allowed.bytes_out),
        _ => None,
    };
    assert_eq!(proxy.wait_for(out), 0, "not one byte reached the server");
}

#[test]
fn a_listed_port_carries_any_protocol() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    for other in [&b"SSH-2.0-x\r\n"[..], b"\x16", b"\x16\x02abc", b"\0"] {
        let back = send(proxy.tunnel(&authority), other);
        // A lone first byte of TLS is the one thing that is never known to be something else.
        let expected = if other == b"\x16" { b"" } else { other };
        assert_eq!(back, expected, "{other:?}");
    }
    let anonymous = hello("127.0.0.1");
    assert!(send(proxy.tunnel(&authority), &anonymous) == anonymous);
    assert!(send(proxy.tunnel(&authority), &hello("other.example")).is_empty());
}
