//! Many connections at once, with the proxy in its own process.
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use crate::support::{control_pair, echo, policy, read_head, server};
use belljar_egress::control::{FromProxy, Setup, ToProxy, receive, send};
use belljar_spec::egress::{EgressSpec, PROXY_PORT};

const CHILD: &str = "BELLJAR_TEST_IS_PROXY";
const CONNECTIONS: usize = 500;
/// Private memory; the pages of the executable are shared with others.
const MAX_KIB: u64 = 16 * 1024;
const MAX_KIB_OF_HEADS: u64 = 40 * 1024;

/// Not a test by itself: the other tests start it as the proxy.
#[test]
fn run_as_proxy() {
    if std::env::var_os(CHILD).is_some() {
        let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        belljar_egress::serve(control).unwrap();
    }
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kib(process: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap()
}

/// A proxy in its own process, and the address at which clients connect.
fn start(authority: &str) -> (Reaped, OwnedFd, SocketAddr) {
    let own_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: own_limit.maximum, ..own_limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let (control, theirs) = control_pair();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tunnel_many::run_as_proxy", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(theirs)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = Reaped(child);
    let policy = policy(&[authority.to_owned()], EgressSpec::default());
    let setup = Setup { policy, secrets: Vec::new() };
    send(control.as_fd(), &ToProxy::Setup(Box::new(setup)), None).unwrap();
    let (message, _) = receive::<FromProxy>(&control).unwrap().unwrap();
    assert!(matches!(message, FromProxy::Ready { .. }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = listener.local_addr().unwrap();
    send(control.as_fd(), &ToProxy::Listener { port: PROXY_PORT }, Some(listener.as_fd())).unwrap();
    (child, control, inside)
}

/// None of them is stored twice.
#[test]
fn five_hundred_unfinished_heads_cost_little_more_than_their_bytes() {
    let (child, _control, inside) = start("a.example");
    let head = format!("GET http://a.example/ HTTP/1.1\r\nX: {}", "y".repeat(31 * 1024));
    let mut streams: Vec<_> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(inside).unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).unwrap();
    }
    let mut held = 0;
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        held = held.max(kib(child.0.id(), "RssAnon"));
    }
    println!("{held} KiB with {CONNECTIONS} of {} bytes", head.len());
    assert!(held > CONNECTIONS as u64 * 31, "they were not read: {held} KiB");
    assert!(held < MAX_KIB_OF_HEADS, "{held} KiB");
}

#[test]
fn five_hundred_connections_cost_little() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let (child, _control, inside) = start(&authority);
    let started = kib(child.0.id(), "RssAnon");
    let connect = || {
        let mut stream = TcpStream::connect(inside).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(crate::support::TIMEOUT)).unwrap();
        stream.write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    let idle = kib(child.0.id(), "RssAnon");
    // Each sends something, all at once.
    let chunk = [7; 50_000];
    for stream in &mut streams {
        stream.write_all(&chunk).unwrap();
    }
    for stream in &mut streams {
        stream.read_exact(&mut vec![0; chunk.len()]).unwrap();
    }
    let (anonymous, all) = (kib(child.0.id(), "RssAnon"), kib(child.0.id(), "VmRSS"));
    println!(
        "{started} KiB at first, {idle} KiB with {CONNECTIONS} idle, {anonymous} KiB after all spoke"
    );
    println!("{all} KiB with the pages of the executable");
    assert!(anonymous < MAX_KIB, "{anonymous} KiB");
}
