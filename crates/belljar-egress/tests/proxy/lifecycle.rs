//! How the proxy starts and ends, and what it reports.
use std::io::Write;
use std::os::fd::AsFd;

use crate::support::{Proxy, control_pair, echo, policy, read_all, server};
use belljar_egress::control::{FromProxy, Setup, ToProxy, receive, send};
use belljar_egress::{ServeError, serve};
use belljar_spec::egress::{EgressEvent, EgressSpec};

#[test]
fn it_ends_with_its_supervisor_and_closes_everything() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    proxy.abandon().unwrap();
    assert!(read_all(&mut stream).is_empty());
}

#[test]
fn the_end_of_open_connections_is_reported() {
    let outside = server(echo);
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut streams: Vec<_> = (0..20).map(|_| proxy.tunnel(&authority)).collect();
    for stream in &mut streams {
        stream.write_all(b"hello").unwrap();
        std::io::Read::read_exact(stream, &mut [0; 5]).unwrap();
    }
    let events = proxy.end();
    let carried = |event: &&EgressEvent| matches!(event, EgressEvent::Allowed(allowed) if (allowed.bytes_out, allowed.bytes_in) == (5, 5));
    assert_eq!(events.iter().filter(carried).count(), 20, "{events:?}");
}

#[test]
fn a_flood_of_denials_becomes_few_events() {
    let proxy = Proxy::start(&[], EgressSpec::default());
    let mut stream = proxy.connect();
    let requests = 3000;
    for number in 0..requests {
        let host = format!("h{}.example:443", number % 7);
        write!(stream, "CONNECT {host} HTTP/1.1\r\n\r\n").unwrap();
        let head = crate::support::read_head(&mut stream);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        std::io::Read::read_exact(&mut stream, &mut vec![0; length.parse().unwrap()]).unwrap();
    }
    let started = std::time::Instant::now();
    let events = proxy.end();
    let count = |event: &EgressEvent| match event {
        EgressEvent::Denied(denied) => denied.count,
        other => panic!("{other:?}"),
    };
    assert_eq!(events.iter().map(count).sum::<u64>(), requests);
    assert!(events.len() < 1500, "{} in {:?}", events.len(), started.elapsed());
}

#[test]
fn invalid_messages_are_refused() {
    let (control, theirs) = control_pair();
    let thread = std::thread::spawn(move || serve(theirs));
    let setup = Setup {
        policy: policy(&["http://a.example".to_owned()], EgressSpec::default()),
        secrets: Vec::new(),
    };
    send(control.as_fd(), &ToProxy::Setup(Box::new(setup)), None).unwrap();
    let (message, _) = receive::<FromProxy>(&control).unwrap().unwrap();
    assert!(matches!(message, FromProxy::Failed { why } if why.contains("a.example")));
    assert!(matches!(thread.join().unwrap(), Err(ServeError::BadSetup(_))));

    for wrong in [ToProxy::Listener { port: 1 }, ToProxy::Connection { port: 1 }] {
        let (control, theirs) = control_pair();
        send(control.as_fd(), &wrong, None).unwrap();
        assert!(matches!(serve(theirs), Err(ServeError::UnexpectedMessage)));
    }
    let (control, theirs) = control_pair();
    rustix::net::send(&control, b"nonsense", rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(serve(theirs), Err(ServeError::Control(_))));
    let (control, theirs) = control_pair();
    drop(control);
    serve(theirs).unwrap();
}
