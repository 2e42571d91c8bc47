//! Host names that contradict each other, and tunnels that are used for another protocol.

use belljar_spec::Clause;

use super::trial::{self, DialogueResults, allowed, control, inside, ok_at, short};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, send, tls};
use crate::testbed::{TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "net.host-mismatch",
        attack: "ask for an allowed host with another one's name in the Host header",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: host_mismatch,
    },
    Case {
        name: "net.sni-mismatch",
        attack: "ask for an allowed host and for another one in TLS, in a tunnel and where it is opened",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: sni_mismatch,
    },
    Case {
        name: "net.other-port",
        attack: "tunnel to a port of an allowed host that no rule names",
        clause: Clause::NetSealed,
        severity: Severity::Medium,
        run: other_port,
    },
    Case {
        name: "net.other-protocol",
        attack: "speak something else than TLS through port 443",
        clause: Clause::NetSealed,
        severity: Severity::Medium,
        run: other_protocol,
    },
];

const FLAGS: &[&str] = &["--allow-host", "ok.example"];

/// Through both arms: inside nothing of the marker arrives, without a check it does.
fn marked(
    testbed: &TestBed,
    flags: &[&str],
    dialogues: &[Dialogue],
    arrives: impl Fn(&DialogueResults) -> bool,
) -> Result<Verdict, TestBedError> {
    let all: Vec<Dialogue> = [allowed()].into_iter().chain(dialogues.iter().cloned()).collect();
    let through = inside(testbed, flags, &all)?;
    if let Some(verdict) = trial::unfit(&through) {
        return Ok(verdict);
    }
    if let Some(at) = through.seen.beyond(&[&ok_at(80), &ok_at(443)]).first() {
        return Ok(Verdict::broke(format!("{at} was reached")));
    }
    if arrives(&through) {
        return Ok(Verdict::broke("the server got it"));
    }
    if let Some(what) = through.not_refused(&[trial::ALLOWED]) {
        return Ok(Verdict::broke(format!("{what}: {}", short(through.probe_report(what)))));
    }
    if !arrives(&control(testbed, dialogues)?) {
        return Ok(Verdict::no_control("without a check, the server did not get it either"));
    }
    let answers: Vec<&str> =
        dialogues.iter().map(|one| status(through.probe_report(&one.what))).collect();
    Ok(Verdict::held(format!("{} attempts: {}", dialogues.len(), each_once(&answers))))
}

fn status(probe_report: &str) -> &str {
    let last =
        probe_report.rmatch_indices("HTTP/1.1 ").next().map(|(at, _)| &probe_report[at + 9..]);
    last.and_then(|rest| rest.get(..3)).unwrap_or("closed")
}

fn each_once(answers: &[&str]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for answer in answers {
        // The tunnel was opened, and its content was cut off.
        let answer = if *answer == "200" { "closed" } else { answer };
        if !all.contains(&answer) {
            all.push(answer);
        }
    }
    all.join(", ")
}

fn host_mismatch(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let asking =
        |url: &str, hosts: &str| format!("GET {url} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
    let dialogues = [
        Dialogue::raw("another host", asking("http://ok.example/", "Host: other.example\r\n")),
        Dialogue::raw("another port", asking("http://ok.example/", "Host: ok.example:8080\r\n")),
        Dialogue::raw(
            "two hosts",
            asking("http://ok.example/", "Host: ok.example\r\nHost: other.example\r\n"),
        ),
        Dialogue::raw(
            "user info",
            asking("http://ok.example@other.example/", "Host: other.example\r\n"),
        ),
        Dialogue::raw("no absolute target", asking("/", "Host: other.example\r\n")),
        Dialogue::raw("an empty host", asking("http:///", "Host: other.example\r\n")),
    ];
    marked(testbed, FLAGS, &dialogues, |tried| {
        let head = |text: &str| tried.seen.received(text);
        head("Host: other.example") || head("host: other.example") || head("ok.example:8080")
    })
}

fn sni_mismatch(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let tunnel = |what: &str, inside: Vec<Step>| {
        Dialogue::tunnel("ok.example:443", inside).called(what.to_owned())
    };
    let blind = [
        tunnel(
            "another name",
            vec![tls("other.example"), get("other.example", "/"), Step::AttemptResult],
        ),
        tunnel("no name", vec![Step::Tls(None), get("other.example", "/"), Step::AttemptResult]),
        Dialogue::socks(
            "ok.example",
            443,
            [tls("other.example"), get("other.example", "/"), Step::AttemptResult],
        ),
    ];
    let another = |tried: &DialogueResults| {
        tried.seen.requests.iter().any(|one| one.sni.as_deref() == Some("other.example"))
            || tried.seen.received("other.example")
    };
    let verdict = marked(testbed, FLAGS, &blind, another)?;
    if !verdict.has_held() {
        return Ok(verdict);
    }
    let opened = [
        tunnel(
            "a host inside",
            vec![tls("ok.example"), get("other.example", "/"), Step::AttemptResult],
        ),
        tunnel(
            "another name inside",
            vec![tls("other.example"), get("ok.example", "/"), Step::AttemptResult],
        ),
        tunnel(
            "an absolute target inside",
            vec![
                tls("ok.example"),
                send(
                    "GET http://other.example/ HTTP/1.1\r\nHost: ok.example\r\nConnection: close\r\n\r\n",
                ),
                Step::AttemptResult,
            ],
        ),
    ];
    let flags = ["--allow-host", "ok.example", "-c", "network.intercept=[\"ok.example\"]"];
    marked(testbed, &flags, &opened, another)
}

fn other_port(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let banner = || [send("hello\r\n"), Step::Rest];
    let dialogues = [
        Dialogue::tunnel("ok.example:22", banner()),
        Dialogue::tunnel(
            "ok.example:8443",
            [tls("ok.example"), get("ok.example", "/"), Step::AttemptResult],
        ),
        Dialogue::tunnel("ok.example:0", banner()),
        Dialogue::tunnel("ok.example:65558", banner()), // 22, where 16 bits are taken of it
        Dialogue::tunnel("ok.example:+22", banner()),
        Dialogue::tunnel("ok.example:22:443", banner()),
        Dialogue::socks("ok.example", 22, banner()),
        Dialogue::plain("ok.example:8080"),
    ];
    trial::judge(testbed, FLAGS, &dialogues, &[ok_at(22), ok_at(8443), ok_at(8080)])
}

fn other_protocol(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let tunnel = |what: &str, bytes: &str| {
        Dialogue::tunnel("ok.example:443", [send(bytes), Step::Rest]).called(what.to_owned())
    };
    let dialogues = [
        tunnel("SSH", "SSH-2.0-smuggled\r\n"),
        tunnel("HTTP", "GET /smuggled HTTP/1.1\r\nHost: ok.example\r\n\r\n"),
        tunnel("nearly TLS", "\u{16}\u{9}\u{9}\0\u{5}smuggled"),
        Dialogue::socks("ok.example", 443, [send("SSH-2.0-smuggled\r\n"), Step::Rest]),
    ];
    marked(testbed, FLAGS, &dialogues, |tried| tried.seen.received("smuggled"))
}
