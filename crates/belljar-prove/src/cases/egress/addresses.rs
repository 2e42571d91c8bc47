//! Addresses that no run may reach, whatever its rules are.

use std::net::{IpAddr, SocketAddr};

use belljar_spec::Clause;

use super::trial::{self, allowed, inside, judge, ok_at, short, wrong};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, get};
use crate::testbed::{TestBed, TestBedError};
use crate::world::names::{FORBIDDEN, METADATA, OTHER, PRIVATE};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "net.private-by-name",
        attack: "ask the proxy for names that lead to loopback, metadata and private addresses",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: by_name,
    },
    Case {
        name: "net.private-by-address",
        attack: "ask the proxy for such addresses themselves, in every spelling",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: by_address,
    },
    Case {
        name: "net.address-not-written",
        attack: "ask the proxy for a public address that no rule names",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: not_written,
    },
    Case {
        name: "net.rebinding",
        attack: "use a name that is public when it is checked and loopback when it is dialled",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: rebinding,
    },
];

/// Any public name: the widest rule there is. It is weaker than what a run needs, hence the waiver.
const ANY: &[&str] =
    &["--allow-host", "*", "--waive", "net.sealed=the attacks are tried with every name allowed"];

fn at(address: &str, port: u16) -> String {
    let address: IpAddr = address.parse().unwrap_or(IpAddr::from([0; 4]));
    SocketAddr::new(address, port).to_string()
}

/// Through each protocol of the proxy.
fn asked_for(host: &str) -> Vec<Dialogue> {
    let authority = format!("{host}:80");
    vec![
        Dialogue::plain(host),
        Dialogue::tunnel(&authority, [get(host, "/"), crate::dialogue::Step::AttemptResult]),
        Dialogue::socks(host, 80, [get(host, "/"), crate::dialogue::Step::AttemptResult]),
    ]
}

fn by_name(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let dialogues: Vec<Dialogue> = FORBIDDEN.iter().flat_map(|(name, _)| asked_for(name)).collect();
    // A name that also has a public address must be refused too: which address is used is chance.
    let forbidden: Vec<String> = FORBIDDEN.iter().map(|(_, address)| at(address, 80)).collect();
    judge(testbed, ANY, &dialogues, &forbidden)
}

fn by_address(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const SPELLINGS: &[&str] = &[
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "0.0.0.0",
        "0",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:10.1.2.3]",
        "[64:ff9b::a01:203]",
        "[2002:a01:203::1]",
        "[fd00:ec2::254]",
        METADATA,
        "0xa9fea9fe",
        "2852039166",
        PRIVATE,
        "10.0x10203",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "[fe80::1%25lo]",
        "ok.example@127.0.0.1",
        "127.0.0.1%2f.ok.example",
    ];
    let mut dialogues: Vec<Dialogue> = SPELLINGS.iter().flat_map(|host| asked_for(host)).collect();
    for address in ["127.0.0.1", METADATA, PRIVATE, "::1", "fd00:ec2::254", "::ffff:10.1.2.3"] {
        let address = address.parse().unwrap_or(IpAddr::from([0; 4]));
        let rest = [get("x", "/"), crate::dialogue::Step::AttemptResult];
        dialogues.push(Dialogue::socks_address(address, 80, rest));
    }
    let forbidden = ["127.0.0.1", "::1", METADATA, PRIVATE, "64:ff9b::a01:203", "fd00:ec2::254"];
    judge(testbed, ANY, &dialogues, &forbidden.map(|address| at(address, 80)))
}

fn not_written(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let other = at(OTHER, 80);
    let mut dialogues = asked_for(OTHER);
    let address = OTHER.parse().unwrap_or(IpAddr::from([0; 4]));
    dialogues.push(Dialogue::socks_address(
        address,
        80,
        [get(OTHER, "/"), crate::dialogue::Step::AttemptResult],
    ));
    let verdict = judge(testbed, ANY, &dialogues, std::slice::from_ref(&other))?;
    if !verdict.has_held() {
        return Ok(verdict);
    }
    // Written, it is reached: the refusal is about the rule, and not about addresses as such.
    let written = inside(testbed, &["--allow-host", OTHER], &dialogues)?;
    let refused = dialogues.iter().find(|one| !written.was_answered(&one.what));
    Ok(match refused {
        Some(one) => {
            let probe_report = short(written.probe_report(&one.what));
            Verdict::no_control(format!(
                "written in a rule it is refused too: {}: {probe_report}",
                one.what
            ))
        }
        None => verdict,
    })
}

fn rebinding(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let dialogue = Dialogue::plain("rebind.example");
    // One after the other, so that the name has changed by then.
    let again = dialogue.clone().called("the same once more");
    let flags = &["--allow-host", "ok.example", "--allow-host", "rebind.example"];
    let first = inside(testbed, flags, &[allowed(), dialogue.clone()])?;
    let ok = ok_at(80);
    if let Some(verdict) = trial::unfit(&first) {
        return Ok(verdict);
    }
    if let Some(at) = first.seen.beyond(&[&ok]).first() {
        return Ok(Verdict::broke(format!("{at} was reached")));
    }
    // Now the resolver returns loopback at once, as it was not reset.
    let run = flags
        .iter()
        .fold(crate::testbed::Run::in_world(testbed, "dialogues"), |run, flag| run.flag(flag));
    let report = testbed.inside(&run.arg(trial::spell(&[allowed(), again])?))?.report()?;
    let second = trial::DialogueResults { report, seen: testbed.world()?.seen()? };
    if let Some(verdict) = wrong(&second, &[&ok]) {
        return Ok(verdict);
    }
    let control = trial::control(testbed, &[dialogue])?;
    if control.seen.accepted("127.0.0.1:80") == 0 {
        return Ok(Verdict::no_control("without a check, loopback was not reached either"));
    }
    let asked = second.seen.queries.get("A rebind.example").copied().unwrap_or(0);
    Ok(Verdict::held(format!("{asked} answers of the resolver, 0 connections to loopback")))
}
