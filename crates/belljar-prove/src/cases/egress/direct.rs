//! Past the proxy: straight to an address, straight to a resolver, to a neighbour's proxy; and too much of it.

use std::time::{Duration, Instant};

use belljar_spec::Clause;
use belljar_spec::egress::PROXY_PORT;

use super::trial::{allowed, ok_at, spell};
use crate::case::{Case, Severity, Verdict};
use crate::cases::judge::{
    ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, broken, judge, refusals, summary, usual,
};
use crate::stage::{Run, Stage, StageError};
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
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// Straight to these, with hosts allowed: by the proxy they would be reached.
fn straight(stage: &Stage, addresses: &[&str]) -> Result<Verdict, StageError> {
    let world = stage.world()?;
    world.reset()?;
    let run = Run::in_world(stage, "connect").flag("--allow-host").flag("ok.example");
    let inside = stage.inside(&run.arg("given").args(addresses))?.told()?;
    let seen = world.seen()?;
    if let Some(at) = seen.accepts.keys().next() {
        return Ok(Verdict::broke(format!("{at} was reached")));
    }
    if let Some(name) = seen.queries.keys().next() {
        return Ok(Verdict::broke(format!("somebody asked for {name}")));
    }
    let words = ["connect", "given"].iter().chain(addresses);
    let control = stage.in_world(words)?.told()?;
    // A server may see a connection after whoever made it is gone, and would tell the next case of it.
    let expected = addresses.iter().filter(|at| at.starts_with("tcp:")).count();
    let until = Instant::now() + SETTLED_WITHIN;
    while world.seen()?.accepts.len() < expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(judge(&inside, &control, &refusals(stage, &[ENETUNREACH], &[EHOSTUNREACH]), usual))
}

fn ignore_proxy(stage: &Stage) -> Result<Verdict, StageError> {
    let (plain, secure) = (format!("tcp:{OK}:80"), format!("tcp:{OK}:443"));
    let (metadata, quic) = (format!("tcp:{METADATA}:80"), format!("udp:{OK}:443"));
    let six = "tcp:[2606:2800:220:1::1]:80";
    straight(stage, &[&plain, &secure, &metadata, &quic, six])
}

fn resolvers(stage: &Stage) -> Result<Verdict, StageError> {
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
    straight(stage, &servers)
}

/// A resolver on the host's loopback is refused in another way, and is the business of another case.
fn is_elsewhere(server: std::net::IpAddr) -> bool {
    !server.is_loopback()
}

fn neighbours_proxy(stage: &Stage) -> Result<Verdict, StageError> {
    let world = stage.world()?;
    world.reset()?;
    let dialogues = spell(&[allowed()])?;
    // One that is there, and has used its proxy.
    let first = Run::in_world(stage, "dialogues-and-stay").flag("--allow-host").flag("ok.example");
    let mut first = stage.start_inside(&first.arg(&dialogues).arg("20000"))?;
    let told = first.told()?;
    let before = world.seen()?;
    if before.accepted(&ok_at(80)) == 0 {
        let why = format!("the other run's proxy does not work: {:?}", told.facts);
        return Ok(Verdict::Failed { why });
    }
    // Without rules there is no proxy of one's own.
    let run = Run::in_world(stage, "connect");
    let own = format!("tcp:127.0.0.1:{PROXY_PORT}");
    let other = format!("tcp:[::1]:{PROXY_PORT}");
    let bare = stage.inside(&run.arg("given").args([&own, &other]))?.told()?;
    // With rules of one's own, one's own proxy answers, and holds them.
    let run = Run::in_world(stage, "dialogues").flag("--allow-host").flag("other.example");
    let ruled = stage.inside(&run.arg(&dialogues))?.told()?;
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

/// What the docs say that a run has unless it says otherwise.
const MOST_AT_ONCE: u64 = 512;
const MANY: &str = "700";

fn flood(stage: &Stage) -> Result<Verdict, StageError> {
    // On a port where nobody waits for a request before the server is dialled.
    let (port, authority) = (PROXY_PORT.to_string(), "ok.example:8080");
    let run = Run::in_world(stage, "flood").flag("--allow-host").flag(authority);
    let inside = super::trial::of_run(stage, &run.args([MANY, &port, authority]))?;
    let (granted, at_once) = (inside.told.number("granted"), inside.seen.at_once);
    if granted == 0 {
        return Ok(Verdict::Failed {
            why: format!("nothing was granted: {:?}", inside.told.facts),
        });
    }
    if at_once > MOST_AT_ONCE || granted > MOST_AT_ONCE {
        return Ok(Verdict::broke(format!("{granted} were granted, {at_once} were open at once")));
    }
    if inside.told.get("alive") != "true" {
        return Ok(Verdict::broke("afterwards the proxy did not answer any more"));
    }
    let world = stage.world()?;
    world.reset()?;
    stage.in_world(["flood", MANY, &port, authority])?.told()?;
    let without = world.seen()?.at_once;
    if without <= MOST_AT_ONCE {
        return Ok(Verdict::no_control(format!("without a limit it were {without}")));
    }
    Ok(Verdict::held(format!("of {MANY}, {granted} were granted; afterwards it answered")))
}
