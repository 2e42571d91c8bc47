//! CONNECT: which tunnels are allowed, and what passes through them.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::support::{Proxy, closed_port, echo, private, read_all, read_head, server};
use belljar_egress::control::{ToProxy, send};
use belljar_spec::egress::{DenyReason, EgressEvent, EgressSpec, PROXY_PORT, Via};

#[test]
fn bytes_pass_in_both_directions_and_each_side_closes_separately() {
    // Responds only when the other side is closed.
    let outside = server(|mut stream: TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all.reverse();
        stream.write_all(&all).unwrap();
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let mut proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = read_all(&mut stream);
    back.reverse();
    assert!(back == sent);
    let allowed = proxy.wait_for(|event| match event {
        EgressEvent::Allowed(allowed) => Some(allowed.clone()),
        _ => None,
    });
    assert_eq!((allowed.bytes_out, allowed.bytes_in), (1_000_000, 1_000_000));
    assert_eq!((allowed.via, allowed.rule, allowed.error), (Via::Connect, authority, None));
    assert_eq!(allowed.address, Some(outside.ip()));
    assert!(matches!(&proxy.received[0], EgressEvent::Opened(opened) if opened.id == allowed.id));
}

#[test]
fn a_private_name_is_resolved_only_where_the_operator_allows_it() {
    let outside = server(echo);
    let authority = format!("localhost:{}", outside.port());
    let proxy = Proxy::start(&[], private(std::slice::from_ref(&authority)));
    for spelling in [&authority, &authority.to_uppercase(), &authority.replace(':', ".:")] {
        let mut stream = proxy.tunnel(spelling);
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), b"hello", "{spelling}");
    }
    // A rule of the allow-list permits public addresses only, whatever it names.
    let mut proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let response = proxy.exchange(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes());
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    let error = proxy.wait_for(|event| match event {
        EgressEvent::Allowed(allowed) => allowed.error.clone(),
        _ => None,
    });
    assert!(error.contains("the host itself"), "{error}");
}

#[test]
fn an_unlisted_host_is_denied_with_a_text() {
    let mut proxy = Proxy::start(&["a.example".to_owned()], EgressSpec::default());
    let response = proxy.exchange(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{response}");
    assert!(response.contains("x-belljar-denied: not_listed\r\n"), "{response}");
    assert!(
        response.contains("--allow-host pypi.org or network.allow = [\"pypi.org\"]"),
        "{response}"
    );
    let denied = proxy.denied();
    assert_eq!((denied.host.as_str(), denied.port), ("pypi.org", Some(443)));
    assert_eq!((denied.reason, denied.via, denied.count), (DenyReason::NotListed, Via::Connect, 1));
}

#[test]
fn each_refusal_has_its_reason() {
    let allow = ["a.example".to_owned(), "GET b.example/v1".to_owned(), "*".to_owned()];
    for (request, status, reason) in [
        ("CONNECT a.example:22 HTTP/1.1\r\n\r\n", 403, "port_not_listed"),
        ("CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n", 403, "address_not_listed"),
        ("CONNECT [::1]:443 HTTP/1.1\r\n\r\n", 403, "address_not_listed"),
        ("CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1\r\n\r\n", 403, "address_not_listed"),
        ("CONNECT 127.1:443 HTTP/1.1\r\n\r\n", 403, "not_a_name"),
        ("CONNECT 0x7f000001:443 HTTP/1.1\r\n\r\n", 403, "not_a_name"),
        ("CONNECT a@b.example:443 HTTP/1.1\r\n\r\n", 403, "not_a_name"),
        ("CONNECT a.example HTTP/1.1\r\n\r\n", 400, "bad_request"),
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n", 400, "names_differ"),
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n", 400, "names_differ"),
        (
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
            400,
            "bad_request",
        ),
        ("CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400, "bad_request"),
        ("GET /path HTTP/1.1\r\nHost: a.example\r\n\r\n", 400, "bad_request"),
    ] {
        let proxy = Proxy::start(&allow, EgressSpec::default());
        let response = proxy.exchange(request.as_bytes());
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{request}\n{response}");
        assert!(
            response.contains(&format!("x-belljar-denied: {reason}\r\n")),
            "{request}\n{response}"
        );
        let events = proxy.end();
        let count = |event: &&EgressEvent| matches!(event, EgressEvent::Denied(_));
        assert_eq!(events.iter().filter(count).count(), 1, "{request}\n{events:?}");
        assert_eq!(events.len(), 1, "{request}\n{events:?}");
    }
}

#[test]
fn input_that_is_not_http_is_denied() {
    for nonsense in
        [&b"\x16\x03\x01\x02\x00"[..], b"SSH-2.0-x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut proxy = Proxy::start(&[], EgressSpec::default());
        let response = proxy.exchange(nonsense);
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 4"), "{response}");
        assert_eq!(proxy.denied().reason, DenyReason::BadRequest);
    }
    let mut proxy = Proxy::start(&[], EgressSpec::default());
    let long = format!("CONNECT a.example:443 HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let mut stream = proxy.connect();
    let _ = stream.write_all(long.as_bytes());
    let response = read_all(&mut stream);
    assert!(response.is_empty() || response.starts_with(b"HTTP/1.1 431"), "{response:?}");
    assert_eq!(proxy.denied().reason, DenyReason::BadRequest);
}

#[test]
fn after_a_denial_the_connection_takes_the_next_request() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.connect();
    stream.write_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n").unwrap();
    let head = read_head(&mut stream);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    // What directly follows the head is for the host.
    write!(stream, "CONNECT {authority} HTTP/1.1\r\n\r\nearly").unwrap();
    let head = read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
    stream.write_all(b" and late").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), b"early and late");
}

#[test]
fn bytes_directly_after_connect_are_for_the_host() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    for early in ["EHLO me\nMAIL\n".to_owned(), "\n\n".to_owned(), "x".repeat(40_000)] {
        let mut stream = proxy.connect();
        write!(stream, "CONNECT {authority} HTTP/1.1\r\n\r\n{early}").unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), early.as_bytes());
    }
    // A fault before it, or in it, still counts.
    let refused =
        format!("CONNECT a.example:443 HTTP/1.1\r\n\r\nX: y\nCONNECT {authority} HTTP/1.1\r\n\r\n");
    let response = proxy.exchange(refused.as_bytes());
    assert!(response.contains("403 Forbidden") && !response.contains(" 200 "), "{response}");
    let response = proxy.exchange(format!("CONNECT {authority} HTTP/1.1\nX: y\r\n\r\n").as_bytes());
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
}

#[test]
fn a_server_may_send_first() {
    let outside = server(|mut stream: TcpStream| {
        stream.write_all(b"SSH-2.0-server\r\n").unwrap();
        echo(stream);
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    let mut greeting = [0; 16];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"SSH-2.0-server\r\n");
    stream.write_all(b"SSH-2.0-client\r\n").unwrap();
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"SSH-2.0-client\r\n");
    // The server may also end first.
    drop(stream);
}

#[test]
fn a_host_that_does_not_answer_is_not_a_denial() {
    let authority = format!("127.0.0.1:{}", closed_port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let response = proxy.exchange(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes());
    assert!(response.starts_with("HTTP/1.1 503") && !response.contains("x-belljar"), "{response}");
    let events = proxy.end();
    assert!(
        matches!(&events[1], EgressEvent::Allowed(allowed) if allowed.error.is_some()),
        "{events:?}"
    );
}

#[test]
fn a_unix_socket_from_the_supervisor_is_served_like_tcp() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let hand_over = |port| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        mine.set_read_timeout(Some(crate::support::TIMEOUT)).unwrap();
        send(proxy.control.as_fd(), &ToProxy::Connection { port }, Some(theirs.as_fd())).unwrap();
        mine
    };
    let mut stream = hand_over(PROXY_PORT);
    write!(stream, "CONNECT {authority} HTTP/1.1\r\n\r\n").unwrap();
    let mut head = vec![0; b"HTTP/1.1 200 OK\r\n\r\n".len()];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head, b"HTTP/1.1 200 OK\r\n\r\n");
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "hello");
    // A port without a route is closed.
    let mut stray = hand_over(8080);
    assert_eq!(stray.read(&mut [0]).unwrap(), 0);
}

#[test]
fn passwords_are_never_shown() {
    let mut proxy = Proxy::start(&["a.example".to_owned()], EgressSpec::default());
    let requests = [
        "CONNECT user:hunter2@a.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: user:hunter2@a.example\r\n\r\n",
        "CONNECT user:hunter2@a.example:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "GET http://user:hunter2@a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET https://user:hunter2@a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\nHost: user:hunter2@b.example\r\n\r\n",
    ];
    for request in requests {
        let response = proxy.exchange(request.as_bytes());
        assert!(response.starts_with("HTTP/1.1 40") && response.contains(".example"), "{response}");
        assert!(!response.contains("hunter2"), "{response}");
        proxy.denied();
    }
    let response = proxy.exchange(b"CONNECT a.example HTTP/1.1\r\n\r\n");
    assert!(response.contains("needs a port") && !response.contains("no plain host"), "{response}");
    let events = proxy.end();
    assert_eq!(events.len(), requests.len() + 1);
    assert!(!format!("{events:?}").contains("hunter2"), "{events:?}");
}

#[test]
fn a_tunnel_to_port_80_carries_requests_to_its_host_only() {
    let rules = ["GET 127.0.0.1:80/docs".to_owned()];
    let proxy = Proxy::start(&rules, EgressSpec::default());
    let exchange = |request: &str| {
        let mut stream = proxy.tunnel("127.0.0.1:80");
        stream.write_all(request.as_bytes()).unwrap();
        read_head(&mut stream)
    };
    let response = exchange("GET /docs HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
    let response = exchange("GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    // The control: it is forwarded, whether or not a server is there.
    let response = exchange("GET /docs/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(!response.starts_with("HTTP/1.1 40"), "{response}");
    let denied = |event: &EgressEvent| match event {
        EgressEvent::Denied(denied) => Some(denied.reason),
        _ => None,
    };
    let reasons: Vec<DenyReason> = proxy.end().iter().filter_map(denied).collect();
    assert_eq!(reasons, [DenyReason::NamesDiffer, DenyReason::RequestNotListed]);
}

#[test]
fn equal_denials_are_reported_once_and_then_counted() {
    let proxy = Proxy::start(&[], EgressSpec::default());
    for _ in 0..7 {
        assert_eq!(proxy.connect_status("pypi.org:443"), "403");
    }
    assert_eq!(proxy.connect_status("pypi.org:80"), "403");
    let denied = |event: &EgressEvent| match event {
        EgressEvent::Denied(denied) => Some((denied.port.unwrap(), denied.count)),
        _ => None,
    };
    let reported: Vec<_> = proxy.end().iter().filter_map(denied).collect();
    assert_eq!(reported, [(443, 1), (80, 1), (443, 6)]);
}

#[test]
fn an_unused_tunnel_to_port_80_is_not_a_denial() {
    let proxy = Proxy::start(&["127.0.0.1:80".to_owned()], EgressSpec::default());
    let mut stream = proxy.tunnel("127.0.0.1:80");
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut stream).is_empty());
    let events = proxy.end();
    let [EgressEvent::Allowed(unused)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(unused.error.as_deref(), Some("closed by the client before it sent anything"));
    assert_eq!(unused.rule, "127.0.0.1:80");
}
