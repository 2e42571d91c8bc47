//! Secrets in intercepted TLS and in a route, with the whole proxy.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use belljar_egress::control::{FromProxy, Setup, ToProxy, receive, send};
use belljar_egress::serve;
use belljar_spec::Host;
use belljar_spec::egress::{
    EgressPolicy, EgressSpec, PROXY_PORT, RouteScheme, RouteSpec, RouteTarget, SecretPlace,
    SecretSource, SecretSpec, SecretValue,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

const VALUE: &str = "canary-in-the-whole";
const ROUTE: u16 = 8081;

/// The trusted roots are read from an environment variable, so the test runs itself again with it set.
#[test]
fn a_secret_is_sent_and_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "intercepted::in_child", "--ignored", "--nocapture"])
        .env("SSL_CERT_FILE", directory.path().join("roots.pem"))
        .env_remove("SSL_CERT_DIR")
        .status()
        .unwrap();
    assert!(status.success());
}

/// A file without any root certificate must not fall back to the default roots.
#[test]
fn without_the_configured_roots_the_proxy_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (name, path) in [
        ("SSL_CERT_FILE", empty.as_path()),
        ("SSL_CERT_FILE", &directory.path().join("absent.pem")),
        ("SSL_CERT_DIR", directory.path()),
    ] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "intercepted::in_child_without_roots", "--ignored", "--nocapture"])
            .env_remove("SSL_CERT_FILE")
            .env_remove("SSL_CERT_DIR")
            .env(name, path)
            .status()
            .unwrap();
        assert!(status.success(), "{name} {}", path.display());
    }
}

#[test]
#[ignore = "run by the other one"]
fn in_child_without_roots() {
    match set_up(1).1 {
        FromProxy::Failed { why } => assert!(why.contains("SSL_CERT_FILE"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "run by the other one"]
fn in_child() {
    let ca = ca();
    std::fs::write(std::env::var_os("SSL_CERT_FILE").unwrap(), ca.pem()).unwrap();
    let (port, received) = host(&ca);
    let (control, trust) = start(port);

    let client = client(&trust);
    for greeting in [connect, socks] {
        let tunnel = greeting(listen(&control, PROXY_PORT), port);
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(client.clone(), name).unwrap();
        let mut stream = StreamOwned::new(connection, tunnel);
        check(&exchange(&mut stream, port), &received);
    }
    check(&exchange(&mut listen(&control, ROUTE), ROUTE), &received);
}

fn check(response: &str, received: &Receiver<String>) {
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(!response.contains(VALUE) && response.contains(&"*".repeat(VALUE.len())), "{response}");
    let received = received.recv_timeout(Duration::from_secs(10)).unwrap().to_lowercase();
    assert!(received.contains(&format!("x-key: {VALUE}\r\n")), "{received}");
}

fn ca() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server that echoes the head of each request.
fn host(ca: &CertifiedIssuer<'static, KeyPair>) -> (u16, Receiver<String>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, ca).unwrap().der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(config.clone()).unwrap();
            echo_head(StreamOwned::new(connection, stream), &sender);
        }
    });
    (port, received)
}

fn echo_head(mut stream: StreamOwned<ServerConnection, TcpStream>, sender: &Sender<String>) {
    let head = head(&mut stream);
    let length = head.len();
    let response =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{head}");
    stream.write_all(response.as_bytes()).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    sender.send(head).unwrap();
}

fn head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn start(port: u16) -> (OwnedFd, String) {
    match set_up(port) {
        (control, FromProxy::Ready { trust: Some(trust) }) => (control, trust.ca_certificate),
        other => panic!("{other:?}"),
    }
}

fn set_up(port: u16) -> (OwnedFd, FromProxy) {
    let host = Host::Name("localhost".to_owned());
    let secret = SecretSpec {
        env: "KEY".into(),
        host: host.clone(),
        port,
        place: SecretPlace::Header { name: "x-key".into() },
        source: SecretSource::Env { name: "KEY".into() },
    };
    let to = RouteTarget { scheme: RouteScheme::Https, host, port, path: String::new() };
    let spec = EgressSpec {
        allow_private: vec![format!("localhost:{port}")],
        intercept: vec![format!("localhost:{port}")],
        secrets: vec![secret],
        routes: vec![RouteSpec { listen: ROUTE, to, secret: Some("KEY".into()) }],
        ..EgressSpec::default()
    };
    let policy = EgressPolicy { run: "test".into(), allow: Vec::new(), setup: None, spec };
    let placeholder = "placeholder".to_owned();
    let secrets = vec![SecretValue { env: "KEY".into(), value: VALUE.into(), placeholder }];
    let (control, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    std::thread::spawn(move || serve(theirs));
    let setup = ToProxy::Setup(Box::new(Setup { policy, secrets }));
    send(control.as_fd(), &setup, None).unwrap();
    let (message, _) = receive(&control).unwrap().unwrap();
    (control, message)
}

/// Connects to this port as a client in the sandbox.
fn listen(control: &OwnedFd, port: u16) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    send(control.as_fd(), &ToProxy::Listener { port }, Some(listener.as_fd())).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn connect(mut stream: TcpStream, port: u16) -> TcpStream {
    write!(stream, "CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n").unwrap();
    let head = head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

fn socks(mut stream: TcpStream, port: u16) -> TcpStream {
    stream.write_all(&[5, 1, 0, 5, 1, 0, 3, 9]).unwrap();
    stream.write_all(b"localhost").unwrap();
    stream.write_all(&port.to_be_bytes()).unwrap();
    let mut response = [0; 12];
    stream.read_exact(&mut response).unwrap();
    assert_eq!(response[..4], [5, 0, 5, 0]);
    stream
}

fn client(trust: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trust.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

fn exchange(stream: &mut (impl Read + Write), port: u16) -> String {
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost:{port}\r\nX-Key: placeholder\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}
