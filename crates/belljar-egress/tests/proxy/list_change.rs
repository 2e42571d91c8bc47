//! What a change of the list does to everything that is open, under way or new.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use belljar_egress::ServeError;
use belljar_egress::control::{ToProxy, send};
use belljar_spec::Host;
use belljar_spec::egress::{
    DenyReason, EgressEvent, EgressPolicy, EgressSpec, RouteScheme, RouteSpec, RouteTarget,
    SecretPlace, SecretSource, SecretSpec, SecretValue,
};
use belljar_spec::network_list::NetworkList;

use crate::support::hosts::{arrivals, full_backlog, get, keep_alive_http, read_response};
use crate::support::{Proxy, TIMEOUT, echo, listen, read_all, read_head, server};

fn start(allow: &[&str]) -> Proxy {
    let allow: Vec<String> = allow.iter().map(|rule| (*rule).to_owned()).collect();
    Proxy::start(&allow, EgressSpec::default())
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"ping"
}

/// A SOCKS tunnel to an IPv4 address, or the code of the refusal.
fn socks(proxy: &Proxy, to: SocketAddr) -> Result<TcpStream, u8> {
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let mut stream = proxy.connect();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    let port = to.port().to_be_bytes();
    stream.write_all(&[&[5, 1, 0, 1][..], &to.ip().octets(), &port].concat()).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    if reply[1] == 0 { Ok(stream) } else { Err(reply[1]) }
}

#[test]
fn what_is_removed_is_closed_and_refused_and_the_rest_stays() {
    let (gone, stays) = (server(echo), server(echo));
    let http = server(keep_alive_http).to_string();
    let (gone_name, stays_name) = (gone.to_string(), stays.to_string());
    let mut proxy = start(&[&gone_name, &stays_name, &http]);
    let mut lost = [proxy.tunnel(&gone_name), socks(&proxy, gone).unwrap()];
    let mut kept = [proxy.tunnel(&stays_name), socks(&proxy, stays).unwrap()];
    let mut keep_alive = proxy.connect();
    assert!(get(&mut keep_alive, &http).starts_with("HTTP/1.1 200"));
    assert!(lost.iter_mut().chain(&mut kept).all(echoes));
    // Two tunnels, and the connection that waits for the next request.
    assert_eq!(proxy.change_to(&[&stays_name]), 3);
    for stream in &mut lost {
        assert_eq!(read_all(stream), b"");
    }
    assert!(kept.iter_mut().all(echoes));
    let refused = get(&mut keep_alive, &http);
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert_eq!(proxy.connect_status(&gone_name), "403");
    assert_eq!(socks(&proxy, gone).unwrap_err(), 2);
    assert_eq!(proxy.connect_status(&stays_name), "200");
    let why = proxy.wait_for(|event| match event {
        EgressEvent::Allowed(over) if over.port == gone.port() => Some(over.clone()),
        _ => None,
    });
    assert_eq!((why.bytes_out, why.bytes_in), (4, 4));
    assert_eq!(why.error.unwrap(), "closed, because the run's network list was changed");
    // And the other way.
    assert_eq!(proxy.change_to(&[&stays_name, &gone_name]), 0);
    assert!(kept.iter_mut().all(echoes) && echoes(&mut proxy.tunnel(&gone_name)));
    assert_eq!(proxy.change_to(&[]), 3);
    assert_eq!(proxy.connect_status(&stays_name), "403");
}

#[test]
fn a_dial_that_is_pending_when_its_host_is_removed_never_connects() {
    let dialled = |removed: bool| {
        let (listener, waiting) = full_backlog();
        let authority = listener.local_addr().unwrap().to_string();
        let mut proxy = start(&[&authority]);
        let mut stream = proxy.connect();
        write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
        proxy.wait_for(|event| matches!(event, EgressEvent::Opened(_)).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        if removed {
            assert_eq!(proxy.change_to(&[]), 1);
            assert!(read_head(&mut stream).starts_with("HTTP/1.1 403"));
            assert_eq!(proxy.denied().reason, DenyReason::NotListed);
        }
        arrivals(&listener, Duration::from_secs(4)) - waiting.len()
    };
    assert_eq!(dialled(false), 1);
    assert_eq!(dialled(true), 0);
}

#[test]
fn a_request_in_progress_is_cut_and_an_idle_connection_is_closed() {
    let closed = Arc::new(AtomicU64::new(0));
    let count = closed.clone();
    // Sends the head of a response, and notices when its connection ends.
    let host = server(move |mut stream| {
        read_head(&mut stream);
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").unwrap();
        let _ = stream.read(&mut [0]);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let authority = host.to_string();
    let proxy = start(&[&authority]);
    let mut stream = proxy.connect();
    write!(stream, "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
    stream.read_exact(&mut [0; 4]).unwrap();
    assert_eq!((proxy.change_to(&[&authority]), closed.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(proxy.change_to(&[]), 1);
    assert_eq!(read_all(&mut stream), b"");
    let until = Instant::now() + TIMEOUT;
    while closed.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < until, "the host still has its connection");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Clients open tunnels all the time and mark what they send after a change was reported. A marked byte must arrive at
/// the host that stays, and must never arrive at the one that was removed.
#[test]
fn under_load_nothing_passes_to_a_removed_host_after_the_change_is_reported() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 10;
    let marked: Arc<[AtomicU64; 2]> = Arc::default();
    let host = |at: usize| {
        let marked = marked.clone();
        server(move |mut stream| {
            let mut buffer = [0; 1024];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let count = buffer[..length].iter().filter(|byte| **byte == b'!').count();
                marked[at].fetch_add(count as u64, Ordering::SeqCst);
            }
        })
        .to_string()
    };
    let (removed, stays) = (host(0), host(1));
    let proxy = start(&[&removed, &stays]);
    // Written to while nobody writes a byte, so that no byte is marked late.
    let is_changed = RwLock::new(false);
    let (is_over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let inside = proxy.inside;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let authority = if client % 3 == 0 { &stays } else { &removed };
            let (is_changed, is_over, opened) = (&is_changed, &is_over, &opened);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let mut stream = connect(inside);
                    let named = format!("{authority} HTTP/1.1\r\nHost: {authority}");
                    write!(stream, "CONNECT {named}\r\n\r\n").unwrap();
                    let head = read_head(&mut stream);
                    if !head.starts_with("HTTP/1.1 200") {
                        assert!(head.starts_with("HTTP/1.1 403") || head.is_empty(), "{head}");
                        continue;
                    }
                    opened.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..20 {
                        let is_changed = is_changed.read().unwrap();
                        if stream.write_all(if *is_changed { b"!" } else { b"." }).is_err() {
                            break;
                        }
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            std::thread::sleep(Duration::from_millis(100));
            proxy.change_to(&[&stays]);
            *is_changed.write().unwrap() = true;
            std::thread::sleep(Duration::from_millis(100));
            *is_changed.write().unwrap() = false;
            proxy.change_to(&[&stays, &removed]);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(opened.load(Ordering::SeqCst) > 100);
    assert!(marked[1].load(Ordering::SeqCst) > 100, "nothing was marked");
    assert_eq!(marked[0].load(Ordering::SeqCst), 0);
}

const HTTP_ROUTE: u16 = 8123;
const TCP_ROUTE: u16 = 8124;
const VALUE: &str = "canary-value";

fn route(listen: u16, scheme: RouteScheme, to: SocketAddr, secret: Option<&str>) -> RouteSpec {
    let (host, port, path) = (Host::Address(to.ip()), to.port(), String::new());
    let secret = secret.map(str::to_owned);
    RouteSpec { listen, to: RouteTarget { scheme, host, port, path }, secret }
}

#[test]
fn a_route_is_closed_with_its_target_and_its_secret_is_used_no_more() {
    let arrived = Arc::new(Mutex::new(String::new()));
    let heads = arrived.clone();
    let api = server(move |mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            heads.lock().unwrap().push_str(&head);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let database = server(echo);
    let secret = SecretSpec {
        env: "KEY".into(),
        host: Host::Address(api.ip()),
        port: api.port(),
        place: SecretPlace::Header { name: "x-key".into() },
        source: SecretSource::Env { name: "KEY".into() },
    };
    let routes = vec![
        route(HTTP_ROUTE, RouteScheme::Http, api, Some("KEY")),
        route(TCP_ROUTE, RouteScheme::Tcp, database, None),
    ];
    let spec = EgressSpec { secrets: vec![secret], routes, ..EgressSpec::default() };
    let policy = EgressPolicy { run: "r".into(), allow: Vec::new(), setup: None, spec };
    let secrets =
        vec![SecretValue { env: "KEY".into(), value: VALUE.into(), placeholder: "p".into() }];
    let mut proxy = Proxy::with(policy, secrets);
    let (http, tcp) = (listen(&proxy.control, HTTP_ROUTE), listen(&proxy.control, TCP_ROUTE));
    let request = |stream: &mut TcpStream| {
        write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        read_response(stream)
    };
    let mut keep_alive = connect(http);
    assert!(request(&mut keep_alive).starts_with("HTTP/1.1 200"));
    let mut raw = connect(tcp);
    assert!(echoes(&mut raw));
    assert!(std::mem::take(&mut *arrived.lock().unwrap()).contains(VALUE));

    // Another host, which gets no secret.
    let other = server(keep_alive_http).to_string();
    let list = NetworkList { allow: vec![other.clone()], ..NetworkList::default() };
    assert_eq!(proxy.change(list), 2);
    assert_eq!(read_all(&mut raw), b"");
    let refused = request(&mut keep_alive);
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let mut refused = connect(http);
    write!(refused, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let refused = String::from_utf8(read_all(&mut refused)).unwrap();
    assert!(refused.contains("this route is closed"), "{refused}");
    assert!(!refused.contains(&api.port().to_string()), "{refused}");
    assert!(!echoes(&mut connect(tcp)));
    let answer = get(&mut proxy.connect(), &other);
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
    assert_eq!(*arrived.lock().unwrap(), "");
    let denied = proxy.denied();
    assert_eq!((denied.reason, denied.host), (DenyReason::NotListed, api.ip().to_string()));

    let routes = vec![HTTP_ROUTE, TCP_ROUTE];
    proxy.change(NetworkList { routes, ..NetworkList::default() });
    assert!(request(&mut keep_alive).starts_with("HTTP/1.1 200"));
    assert!(echoes(&mut connect(tcp)));
    assert!(arrived.lock().unwrap().contains(VALUE));
}

#[test]
fn a_tcp_route_carries_bytes_both_ways_and_counts_them() {
    // The host speaks first.
    let host = server(|mut stream| {
        let _ = stream.write_all(b"hello");
        echo(stream);
    });
    let routes = vec![route(TCP_ROUTE, RouteScheme::Tcp, host, None)];
    let mut proxy = Proxy::start(&[], EgressSpec { routes, ..EgressSpec::default() });
    let inside = listen(&proxy.control, TCP_ROUTE);
    let mut stream = connect(inside);
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting == *b"hello" && echoes(&mut stream));
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), b"");
    let over = proxy.wait_for(|event| match event {
        EgressEvent::Allowed(over) => Some(over.clone()),
        _ => None,
    });
    assert_eq!((over.bytes_out, over.bytes_in, over.error), (4, 9, None));
    assert_eq!((over.rule, over.address), (format!("route {TCP_ROUTE}"), Some(host.ip())));
    // By its address the host is not reached: the route is the only way.
    assert_eq!(proxy.connect_status(&host.to_string()), "403");
}

#[test]
fn a_tcp_route_to_a_name_never_leads_to_a_private_address() {
    let host = server(echo);
    let routes = |name: &str| {
        let host_name = Host::parse(name.as_bytes()).unwrap();
        let (scheme, port, path) = (RouteScheme::Tcp, host.port(), String::new());
        let to = RouteTarget { scheme, host: host_name, port, path };
        vec![RouteSpec { listen: TCP_ROUTE, to, secret: None }]
    };
    let reaches = |allow_private: Vec<String>| {
        let spec =
            EgressSpec { routes: routes("localhost"), allow_private, ..EgressSpec::default() };
        let proxy = Proxy::start(&[], spec);
        let inside = listen(&proxy.control, TCP_ROUTE);
        echoes(&mut connect(inside))
    };
    assert!(reaches(vec![format!("localhost:{}", host.port())]));
    assert!(!reaches(Vec::new()));
}

#[test]
fn a_change_during_the_setup_narrows_it_and_holds_after_it() {
    let (one, other) = (server(echo).to_string(), server(echo).to_string());
    let texts = |all: &[&String]| all.iter().map(|text| (*text).clone()).collect::<Vec<_>>();
    let setup = Some(texts(&[&one, &other]));
    let allow = texts(&[&one, &other]);
    let policy = EgressPolicy { run: "r".into(), allow, setup, spec: EgressSpec::default() };
    let proxy = Proxy::with(policy, Vec::new());
    let (mut lost, mut kept) = (proxy.tunnel(&one), proxy.tunnel(&other));
    let list = NetworkList {
        allow: texts(&[&one]),
        setup: Some(texts(&[&other])),
        ..NetworkList::default()
    };
    assert_eq!(proxy.change(list), 1);
    assert_eq!(read_all(&mut lost), b"");
    assert!(echoes(&mut kept));
    assert_eq!(
        (proxy.connect_status(&one), proxy.connect_status(&other)),
        ("403".into(), "200".into())
    );
    proxy.narrow();
    assert_eq!(
        (proxy.connect_status(&one), proxy.connect_status(&other)),
        ("200".into(), "403".into())
    );
}

#[test]
fn a_list_that_cannot_be_read_ends_the_proxy() {
    let host = server(echo).to_string();
    let proxy = start(&[&host]);
    let mut tunnel = proxy.tunnel(&host);
    let list = NetworkList { allow: vec!["http://x".to_owned()], ..NetworkList::default() };
    send(proxy.control.as_fd(), &ToProxy::ChangeList(Box::new(list)), None).unwrap();
    assert_eq!(read_all(&mut tunnel), b"");
    assert!(matches!(proxy.join(), Err(ServeError::BadList(_))));
}
