//! The end of the set-up, with a real proxy in a thread, and with some that do not do as they are told.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use belljar_egress::control::{FromProxy, Setup, ToProxy, receive, send};
use belljar_spec::EventKind;
use belljar_spec::egress::{EgressPolicy, EgressSpec};
use belljar_spec::wire::Arrival;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::tests::{Record, Wire, denied, proxy, turn};
use super::{AfterSetup, NetworkBridge, Ports, Proxy};

/// Echoes what comes.
pub(super) fn outside() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut some = [0; 512];
                while let Ok(got @ 1..) = stream.read(&mut some) {
                    let _ = stream.write_all(&some[..got]); // one that is gone is found by the next read
                }
            });
        }
    });
    address.to_string()
}

pub(super) fn serving(setup: &str, allow: &[&str]) -> Proxy {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    std::thread::spawn(move || belljar_egress::serve(theirs));
    let (words, stderr) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let child = Command::new("sleep").arg("100").stderr(stderr).spawn().unwrap();
    let allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
    let (setup, spec) = (Some(vec![setup.to_owned()]), EgressSpec::default());
    let policy = EgressPolicy { run: "r".to_owned(), allow, setup, spec };
    let mut proxy = Proxy::with(child, ours, words, Setup { policy, secrets: Vec::new() }).unwrap();
    proxy.wait_until_ready().unwrap();
    proxy
}

pub(super) struct TestSandbox {
    pub(super) network: NetworkBridge,
    pub(super) wire: Wire,
    pub(super) record: Record,
    next: u32,
}

impl TestSandbox {
    pub(super) fn new(proxy: Proxy, after: AfterSetup) -> Self {
        let network = NetworkBridge::new(Some(proxy), Ports::default()).with_setup(after);
        Self { network, wire: Wire::new(), record: Record::new(), next: 0 }
    }

    fn say(&mut self, stream: u32, bytes: &[u8]) {
        self.wire.theirs.send_data(stream, bytes);
        self.wire.pass_to(&mut self.network);
    }

    pub(super) fn connect(&mut self) -> u32 {
        self.next += 1;
        self.wire.accept(self.next, &mut self.network)
    }

    /// What comes to this stream until it holds that, or the stream ends.
    fn hear(&mut self, stream: u32, wanted: &str) -> String {
        let (mut text, until) = (String::new(), Instant::now() + Duration::from_secs(20));
        while !text.contains(wanted) && Instant::now() < until {
            turn(&mut self.network, &mut self.wire, &mut self.record);
            for arrival in self.wire.received_inside() {
                match arrival {
                    Arrival::Data { stream: of, bytes } if of == stream => {
                        self.wire.theirs.consumed(of, bytes.len());
                        text.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    Arrival::End { stream: of } if of == stream => return text,
                    _ => {}
                }
            }
        }
        text
    }

    /// The answer to a request for a tunnel.
    pub(super) fn ask(&mut self, authority: &str) -> (u32, String) {
        let stream = self.connect();
        self.say(stream, format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes());
        let answer = self.hear(stream, "\r\n\r\n");
        (stream, answer)
    }

    pub(super) fn narrow(&mut self) {
        let Self { network, wire, record, .. } = self;
        network.narrow(Some(&mut wire.ours), &mut record.recorder).unwrap();
    }
}

#[test]
fn the_set_ups_access_is_closed_and_the_runs_opens() {
    let (one, other) = (outside(), outside());
    let mut inside = TestSandbox::new(serving(&one, &[&other]), AfterSetup::OwnRules);
    let (tunnel, answer) = inside.ask(&one);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    inside.say(tunnel, b"hello");
    assert_eq!(inside.hear(tunnel, "hello"), "hello");
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 403"));
    let silent = inside.connect();

    inside.narrow();
    let heard = inside.wire.received_inside();
    for stream in [tunnel, silent] {
        assert!(heard.contains(&Arrival::End { stream }), "{heard:?}");
    }
    assert!(inside.ask(&one).1.starts_with("HTTP/1.1 403"));
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 200"));
    let kinds = inside.record.kinds();
    let at = |kind| kinds.iter().position(|one| *one == kind);
    assert!(at(EventKind::EgressDenied) < at(EventKind::EgressNarrowed), "{kinds:?}");
    let text = inside.record.text();
    // The tunnel; and, unless a busy machine was slower or faster, the one that was refused and the silent one.
    let closed = (1..=3).any(|count| text.contains(&format!("\"closed\":{count}")));
    assert!(closed, "{text}");
    // Once is enough.
    inside.narrow();
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 200"));
}

#[test]
fn a_run_without_a_way_out_has_no_proxy_after_its_set_up() {
    let one = outside();
    let mut inside = TestSandbox::new(serving(&one, &[]), AfterSetup::Nothing);
    assert!(inside.ask(&one).1.starts_with("HTTP/1.1 200"));
    inside.narrow();
    assert!(inside.network.proxy.is_none());
    let kinds = inside.record.kinds();
    assert!(kinds.contains(&EventKind::EgressNarrowed), "{kinds:?}");
    assert!(!kinds.contains(&EventKind::EgressLost), "{kinds:?}");
    assert_eq!(inside.ask(&one).1, "");
}

fn ends(end: Option<OwnedFd>, silent: Proxy, told: Option<OwnedFd>, why: &str) {
    let pid = silent.pid();
    let mut inside = TestSandbox::new(silent, AfterSetup::OwnRules);
    let carried = inside.connect();
    let begun = Instant::now();
    drop(told);
    inside.narrow();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(inside.network.proxy.is_none());
    assert!(rustix::process::test_kill_process(pid).is_err(), "the process lives");
    assert_eq!(inside.record.kinds(), [EventKind::EgressDenied, EventKind::EgressLost]);
    assert!(inside.record.text().contains(why), "{}", inside.record.text());
    assert!(inside.wire.received_inside().contains(&Arrival::End { stream: carried }));
    drop(end);
}

#[test]
fn a_proxy_that_does_not_answer_is_ended() {
    let (silent, end) = proxy();
    send(end.as_fd(), &denied("before.example"), None).unwrap();
    ends(Some(end), silent, None, "within 5 s");

    let (gone, end) = proxy();
    send(end.as_fd(), &denied("before.example"), None).unwrap();
    ends(None, gone, Some(end), "signal: 9");

    let (strange, end) = proxy();
    send(end.as_fd(), &denied("before.example"), None).unwrap();
    send(end.as_fd(), &FromProxy::Failed { why: String::new() }, None).unwrap();
    ends(Some(end), strange, None, "unexpected message");
}

#[test]
fn what_the_proxy_had_not_taken_yet_is_closed_and_not_handed_over_later() {
    let (slow, end) = proxy();
    let mut inside = TestSandbox::new(slow, AfterSetup::OwnRules);
    for _ in 0..600 {
        inside.connect();
    }
    assert!(inside.network.proxy.as_ref().unwrap().pending() > 0);
    let counted = std::thread::spawn(move || {
        let mut before = 0;
        while let Some((said, _)) = receive::<ToProxy>(&end).unwrap() {
            match said {
                ToProxy::Connection { .. } => before += 1,
                ToProxy::Narrow => break,
                other => panic!("{other:?}"),
            }
        }
        send(end.as_fd(), &FromProxy::Narrowed { closed: before }, None).unwrap();
        rustix::io::ioctl_fionbio(&end, true).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(receive::<ToProxy>(&end).is_err(), "something came after it");
        before
    });
    inside.narrow();
    let proxy = inside.network.proxy.as_ref().unwrap();
    assert_eq!(proxy.pending(), 0);
    assert!(counted.join().unwrap() < 600);
}
