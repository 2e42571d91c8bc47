//! Attacks that bypass the proxy: direct connections, other resolvers, a neighbour's proxy, and floods.

use std::time::{Duration, Instant};

use belljar_spec::Clause;
use belljar_spec::egress::PROXY_PORT;

use super::trial::{allowed, ok_at, spell};
use crate::case::{Case, Severity, Verdict};
use crate::cases::judge::{
    ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, broken, judge, refusals, summary, usual,
};
use crate::testbed::{Run, TestBed, TestBedError};
use crate::world::names::{METADATA, OK};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "net.ignore-proxy",
        attack: "connect to an allowed host without the proxy",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: ignore_proxy,
    },
    Case {
        name: "net.dns",
        attack: "ask a resolver, the host's own or another",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: resolvers,
    },
    Case {
        name: "net.neighbours-proxy",
        attack: "use the proxy of another run",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: neighbours_proxy,
    },
    Case {
        name: "net.flood",
        attack: "hold very many connections open",
        clause: Clause::NetSealed,
        severity: Severity::Medium,
        run: flood,
    },
];

/// Not every address has a server that could see anything.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Straight to these, with hosts allowed: by the proxy they would be reached.
fn straight(testbed: &TestBed, addresses: &[&str]) -> Result<Verdict, TestBedError> {
    let world = testbed.world()?;
    world.reset()?;
    let run = Run::in_world(testbed, "connect").flag("--allow-host").flag("ok.example");
    let inside = testbed.inside(&run.arg("given").args(addresses))?.report()?;
    let seen = world.seen()?;
    if let Some(at) = seen.accepts.keys().next() {
        return Ok(Verdict::broke(format!("{at} was reached")));
    }
    if let Some(name) = seen.queries.keys().next() {
        return Ok(Verdict::broke(format!("somebody asked for {name}")));
    }
    let argv = ["connect", "given"].iter().chain(addresses);
    let control = testbed.in_world(argv)?.report()?;
    // A server may see a connection after its client has ended, and would count it for the next case.
    let expected = addresses.iter().filter(|at| at.starts_with("tcp:")).count();
    let until = Instant::now() + SETTLE_TIMEOUT;
    while world.seen()?.accepts.len() < expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(judge(&inside, &control, &refusals(testbed, &[ENETUNREACH], &[EHOSTUNREACH]), usual))
}

fn ignore_proxy(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (plain, secure) = (format!("tcp:{OK}:80"), format!("tcp:{OK}:443"));
    let (metadata, quic) = (format!("tcp:{METADATA}:80"), format!("udp:{OK}:443"));
    let six = "tcp:[2606:2800:220:1::1]:80";
    straight(testbed, &[&plain, &secure, &metadata, &quic, six])
}

fn resolvers(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = host.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let named = named.map(str::trim).filter(|server| server.parse().is_ok_and(is_elsewhere));
    let servers: Vec<String> = named
        .chain([OK, "8.8.8.8"])
        .flat_map(|server| {
            let at = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
            [format!("udp:{at}:53"), format!("tcp:{at}:53")]
        })
        .collect();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    straight(testbed, &servers)
}

/// A resolver on the host's loopback is refused differently, which another case covers.
fn is_elsewhere(server: std::net::IpAddr) -> bool {
    !server.is_loopback()
}

fn neighbours_proxy(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let world = testbed.world()?;
    world.reset()?;
    let dialogues = spell(&[allowed()])?;
    // One that is there, and has used its proxy.
    let first =
        Run::in_world(testbed, "dialogues-and-stay").flag("--allow-host").flag("ok.example");
    let mut first = testbed.start_inside(&first.arg(&dialogues).arg("20000"))?;
    let report = first.report()?;
    let before = world.seen()?;
    if before.accepted(&ok_at(80)) == 0 {
        let why = format!("the other run's proxy does not work: {:?}", report.facts);
        return Ok(Verdict::Failed { why });
    }
    // Without rules there is no proxy of one's own.
    let run = Run::in_world(testbed, "connect");
    let own = format!("tcp:127.0.0.1:{PROXY_PORT}");
    let other = format!("tcp:[::1]:{PROXY_PORT}");
    let bare = testbed.inside(&run.arg("given").args([&own, &other]))?.report()?;
    // With rules of one's own, one's own proxy answers, and holds them.
    let run = Run::in_world(testbed, "dialogues").flag("--allow-host").flag("other.example");
    let ruled = testbed.inside(&run.arg(&dialogues))?.report()?;
    let after = world.seen()?;
    let was_there = first.is_alive();
    first.stop()?;
    if after.accepts != before.accepts {
        return Ok(Verdict::broke(format!("the servers were reached: {:?}", after.accepts)));
    }
    if let Some(verdict) = broken(&bare, &[ECONNREFUSED]) {
        return Ok(verdict);
    }
    if !was_there {
        return Ok(Verdict::no_control("the other run had ended"));
    }
    let answer = ruled.get(super::trial::ALLOWED).lines().next().unwrap_or_default().to_owned();
    Ok(Verdict::held(format!("{}; with rules of its own: {answer}", summary(&bare))))
}

/// The documented default.
const MAX_AT_ONCE: u64 = 512;
const MANY: &str = "700";

fn flood(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    // On a port where the proxy dials the server before a request arrives.
    let (port, authority) = (PROXY_PORT.to_string(), "ok.example:8080");
    let run = Run::in_world(testbed, "flood").flag("--allow-host").flag(authority);
    let inside = super::trial::of_run(testbed, &run.args([MANY, &port, authority]))?;
    let (granted, at_once) = (inside.report.number("granted"), inside.seen.at_once);
    if granted == 0 {
        return Ok(Verdict::Failed {
            why: format!("nothing was granted: {:?}", inside.report.facts),
        });
    }
    if at_once > MAX_AT_ONCE || granted > MAX_AT_ONCE {
        return Ok(Verdict::broke(format!("{granted} were granted, {at_once} were open at once")));
    }
    if inside.report.get("alive") != "true" {
        return Ok(Verdict::broke("afterwards the proxy did not answer any more"));
    }
    let world = testbed.world()?;
    world.reset()?;
    testbed.in_world(["flood", MANY, &port, authority])?.report()?;
    let without = world.seen()?.at_once;
    if without <= MAX_AT_ONCE {
        return Ok(Verdict::no_control(format!("without a limit it were {without}")));
    }
    Ok(Verdict::held(format!("of {MANY}, {granted} were granted; afterwards it answered")))
}
