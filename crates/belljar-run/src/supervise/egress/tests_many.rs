//! Floods: nothing of the supervisor grows, and nobody waits for ever.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use belljar_spec::egress::PublishSpec;
use belljar_spec::wire::{
    FIRST_CONNECT_STREAM, Flow, MAX_CONNECTIONS, MAX_CONNECTS, mux::MAX_STREAMS,
};
use rustix::process::{Resource, getrlimit};

use super::files::WANTED;
use super::tests::{Record, Wire, proxy, setup, turn};
use super::{NetworkBridge, Ports, Proxy};

fn held(network: &NetworkBridge) -> usize {
    network.relays.count(..) + network.proxy.as_ref().map_or(0, Proxy::pending)
}

#[test]
fn connections_that_are_reset_before_the_proxy_took_them_leave_nothing() {
    let (proxy, _end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let (mut wire, mut record) = (Wire::new(), Record::new());
    for number in 0..3000 {
        let stream = wire.accept(number, &mut network);
        wire.theirs.reset(stream);
        wire.theirs.end(stream);
        wire.pass_to(&mut network);
        if number < 2000 {
            assert!(held(&network) <= 2 * MAX_CONNECTIONS); // not even before the loop comes round
        } else {
            turn(&mut network, &mut wire, &mut record);
            assert_eq!(held(&network), 0);
        }
        wire.received_inside();
        assert!(!wire.ours.is_open(stream) && !wire.theirs.is_open(stream));
    }
}

#[test]
fn visitors_that_break_off_while_pid_1_is_busy_take_no_stream_from_a_command() {
    let ports = Ports::open(&[PublishSpec::parse("3000").unwrap()]).unwrap();
    let at = (Ipv4Addr::LOCALHOST, ports.published()[0].host_port);
    let mut network = NetworkBridge::new(None, ports);
    let (mut wire, mut record) = (Wire::new(), Record::new());
    for _ in 0..MAX_CONNECTS + 50 {
        let visitor = TcpStream::connect(at).unwrap();
        rustix::net::sockopt::set_socket_linger(&visitor, Some(Duration::ZERO)).unwrap();
        drop(visitor); // a reset
        turn(&mut network, &mut wire, &mut record);
    }
    turn(&mut network, &mut wire, &mut record);
    assert_eq!(wire.ours.count_open(FIRST_CONNECT_STREAM..), MAX_CONNECTS);
    let commands = (MAX_STREAMS - MAX_CONNECTIONS - MAX_CONNECTS) as u32;
    assert!((1..=commands).all(|stream| wire.ours.open_for(stream, Flow::Incoming).is_ok()));
}

#[test]
fn a_flood_on_one_port_keeps_nobody_from_another() {
    let wanted = ["3000", "4000", "5000"].map(|port| PublishSpec::parse(port).unwrap());
    let mut ports = Ports::open(&wanted).unwrap();
    let host_ports: Vec<u16> = ports.published().iter().map(|port| port.host_port).collect();
    let dial = |at: usize| TcpStream::connect((Ipv4Addr::LOCALHOST, host_ports[at])).unwrap();
    let _visitors: Vec<TcpStream> = [0, 0, 0, 0, 1, 2, 2].into_iter().map(dial).collect();
    let mut served = Vec::new();
    while let Some((_, port)) = ports.accept() {
        served.push(port);
    }
    assert_eq!(served, [3000, 4000, 5000, 3000, 5000, 3000, 3000]);
}

#[test]
fn a_proxy_that_says_much_does_not_wait_for_somebody_who_reads_it() {
    let mut command = Command::new("sh");
    command.args(["-c", "head -c 1 >/dev/null; head -c 1000000 /dev/zero >&2; exit 3"]);
    let mut talks = Proxy::start_as(command, setup()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let why = loop {
        assert!(Instant::now() < until, "it still waits");
        match talks.take_events().gone {
            Some(why) => break why,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(why.contains("exit status: 3"), "{why}");
}

/// In a process of its own, whose limit is that of many a shell.
#[test]
fn there_are_descriptors_enough_and_nobody_inherits_them() {
    const INNER: &str = "BELLJAR_TEST_FEW_FILES";
    if std::env::var_os(INNER).is_none() {
        let name = "supervise::egress::tests_many::\
                    there_are_descriptors_enough_and_nobody_inherits_them";
        let script = "ulimit -Sn 256 && exec \"$0\" --exact \"$1\"";
        let test = std::env::current_exe().unwrap();
        let mut inner = Command::new("sh");
        inner.arg("-c").arg(script).arg(test).arg(name).env(INNER, "1");
        let output = inner.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let own = || getrlimit(Resource::Nofile).current;
    assert_eq!(own(), Some(256));
    let ports = Ports::open(&[PublishSpec::parse("3000").unwrap()]).unwrap();
    let mut record = Record::new();
    let mut sealed = NetworkBridge::default();
    sealed.prepare(Vec::new(), &mut record.recorder).unwrap();
    assert_eq!(own(), Some(256), "for nothing");
    let mut network = NetworkBridge::new(None, ports);
    network.prepare(Vec::new(), &mut record.recorder).unwrap();
    let most = getrlimit(Resource::Nofile).maximum;
    assert_eq!(own(), Some(most.map_or(WANTED, |most| most.min(WANTED))));
    network.end();
    let child = Command::new("sh").args(["-c", "ulimit -Sn"]).output().unwrap();
    assert_eq!(child.stdout, b"256\n");
}
