//! Ambiguous requests (smuggling), and disguised paths.

use belljar_spec::Clause;

use super::trial::{self, DialogueResults, allowed, control, inside, ok_at, short};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, send, tls};
use crate::testbed::{TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "net.smuggling",
        attack: "hide a second request in one that can be read in two ways",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: smuggling,
    },
    Case {
        name: "net.second-request",
        attack: "ask for another host on a connection that is open already",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: second_request,
    },
    Case {
        name: "net.path-escape",
        attack: "leave the path of a rule by dots, escapes and other methods",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: path_escape,
    },
];

const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: ok.example\r\nX: ";

/// Requests that two parsers end at different places, each with a hidden request.
fn ambiguous(target: &str, host: &str) -> Vec<(&'static str, String)> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\n");
    let chunks = format!("0\r\n\r\n{HIDDEN}");
    let length = chunks.len();
    vec![
        (
            "length and chunks",
            format!("{head}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"),
        ),
        (
            "chunks and length",
            format!("{head}Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{chunks}"),
        ),
        (
            "two lengths",
            format!("{head}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"),
        ),
        ("two lengths in one", format!("{head}Content-Length: 0, {length}\r\n\r\n{HIDDEN}")),
        ("a length with a sign", format!("{head}Content-Length: +0\r\n\r\n{HIDDEN}")),
        (
            "a blank before the colon",
            format!(
                "{head}Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
        (
            "a folded header",
            format!(
                "{head}X-Fold: a\r\n Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n chunked\r\n\
                 Content-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
        (
            "an odd encoding",
            format!(
                "{head}Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
        (
            "an encoding twice",
            format!(
                "{head}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\
                 Content-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
        (
            "chunks in an old version",
            format!(
                "POST {target} HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\
                 Content-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
        (
            "a header that is none",
            format!("{head}Content-Length: {length}\r\nno header\r\nX\0Y: z\r\n\r\n{chunks}"),
        ),
        (
            "a chunk that is too long",
            format!("{head}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n{chunks}"),
        ),
        (
            "line ends without a return",
            format!(
                "{head}X: y\nTransfer-Encoding: chunked\nContent-Length: {length}\r\n\r\n{chunks}"
            ),
        ),
    ]
}

/// No request of that mark may arrive as one of its own.
fn smuggled(tried: &DialogueResults) -> bool {
    tried.seen.requests.iter().any(|one| one.head.starts_with("GET /smuggled"))
}

/// The end of the hidden request.
fn whole(text: &str) -> String {
    format!("{text}\r\n\r\n")
}

fn smuggling(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let plain = ambiguous("http://ok.example/", "ok.example");
    let mut dialogues: Vec<Dialogue> =
        plain.iter().map(|(what, text)| Dialogue::raw(what, whole(text))).collect();
    dialogues.push(Dialogue::raw(
        "a line in the target",
        "GET http://ok.example/\r\nX: y HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    ));
    dialogues.push(Dialogue::raw("an old request", "GET http://ok.example/smuggled\r\n\r\n"));
    // The same where the proxy opens TLS.
    let opened: Vec<Dialogue> = ambiguous("/", "ok.example")
        .iter()
        .map(|(what, text)| {
            let steps = [tls("ok.example"), send(whole(text)), Step::AttemptResult, Step::Rest];
            Dialogue::tunnel("ok.example:443", steps).called(format!("in TLS, {what}"))
        })
        .collect();
    let all: Vec<Dialogue> =
        [allowed()].into_iter().chain(dialogues.iter().cloned()).chain(opened).collect();
    let flags = ["--allow-host", "ok.example", "-c", "network.intercept=[\"ok.example\"]"];
    let through = inside(testbed, &flags, &all)?;
    if let Some(verdict) = trial::unfit(&through) {
        return Ok(verdict);
    }
    if smuggled(&through) {
        return Ok(Verdict::broke("the server got a request that nobody looked at"));
    }
    // Must be refused: a proxy that parses it differently than the server protects nothing.
    if let Some(what) = through.not_refused(&[trial::ALLOWED]) {
        return Ok(Verdict::broke(format!("{what}: {}", short(through.probe_report(what)))));
    }
    if !smuggled(&control(testbed, &dialogues)?) {
        return Ok(Verdict::no_control("without a check, the server did not get it either"));
    }
    Ok(Verdict::held(format!("{} requests refused", all.len() - 1)))
}

fn second_request(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let first = "GET http://ok.example/first HTTP/1.1\r\nHost: ok.example\r\n\r\n";
    let other =
        "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n";
    let metadata = "GET http://metadata.example/ HTTP/1.1\r\nHost: metadata.example\r\nConnection: close\r\n\r\n";
    let tunnel = "CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n";
    let dialogues = [
        Dialogue::new("another host", [send(first), Step::AttemptResult, send(other), Step::Rest]),
        Dialogue::new("another host at once", [send(format!("{first}{other}")), Step::Rest]),
        Dialogue::new("metadata", [send(first), Step::AttemptResult, send(metadata), Step::Rest]),
        Dialogue::new("a tunnel", [send(first), Step::AttemptResult, send(tunnel), Step::Rest]),
    ];
    let all: Vec<Dialogue> = [allowed()].into_iter().chain(dialogues.clone()).collect();
    let through = inside(testbed, &["--allow-host", "ok.example"], &all)?;
    if let Some(verdict) = trial::unfit(&through) {
        return Ok(verdict);
    }
    if let Some(at) = through.seen.beyond(&[&ok_at(80)]).first() {
        return Ok(Verdict::broke(format!("{at} was reached")));
    }
    let wrong = ["other.example", "metadata.example"];
    if let Some(text) = wrong.iter().find(|text| through.seen.received(text)) {
        return Ok(Verdict::broke(format!("a server got a request for {text}")));
    }
    let firsts = through.seen.requests.iter().filter(|one| one.head.contains("/first")).count();
    if firsts == 0 {
        return Ok(Verdict::no_control("the first requests did not arrive either"));
    }
    // A proxy that asks nothing sends all of it to where the first one went.
    if !control(testbed, &dialogues)?.seen.received("http://other.example/") {
        return Ok(Verdict::no_control("without a check, the second ones did not arrive either"));
    }
    Ok(Verdict::held(format!("{firsts} first requests arrived, 0 second ones")))
}

fn path_escape(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const PATHS: &[&str] = &[
        "/v1/../hidden",
        "/v1/%2e%2e/hidden",
        "/v1/%2E%2E/hidden",
        "/v1/.%2e/hidden",
        "/v1/..%2fhidden",
        "/v1/%2e%2e%2fhidden",
        "/v1/..%5chidden",
        "/v1/%252e%252e/hidden",
        "/v1//../hidden",
        "/v1/..;/hidden",
        "/v1/./../hidden",
        "/v10/hidden",
        "/V1/hidden",
        "//v1/hidden",
        "/hidden?/v1/",
        "/hidden#/v1/",
        "/v1/%00/hidden",
        "/v1\\..\\hidden",
    ];
    let asking = |method: &str, path: &str| {
        format!(
            "{method} http://ok.example{path} HTTP/1.1\r\nHost: ok.example\r\nConnection: close\r\n\r\n"
        )
    };
    let mut dialogues: Vec<Dialogue> = PATHS
        .iter()
        .map(|path| Dialogue::new(*path, [send(asking("GET", path)), Step::AttemptResult]))
        .collect();
    for method in ["DELETE", "get", "GET,DELETE"] {
        let text = asking(method, "/v1/hidden");
        dialogues
            .push(Dialogue::new(format!("{method} /v1/hidden"), [send(text), Step::AttemptResult]));
    }
    for path in ["/v1/../hidden", "/v1/%2e%2e/hidden", "/hidden"] {
        let steps = [tls("ok.example"), get("ok.example", path), Step::AttemptResult];
        let what = format!("in TLS, {path}");
        dialogues.push(Dialogue::tunnel("ok.example:443", steps).called(what));
    }
    let good =
        Dialogue::new(trial::ALLOWED, [send(asking("GET", "/v1/good")), Step::AttemptResult]);
    let all: Vec<Dialogue> = [good].into_iter().chain(dialogues.clone()).collect();
    let flags =
        ["-c", "network.allow=[\"GET ok.example/v1\"]", "-c", "network.intercept=[\"ok.example\"]"];
    let through = inside(testbed, &flags, &all)?;
    if let Some(verdict) = trial::unfit(&through) {
        return Ok(verdict);
    }
    let hidden = through.seen.requests.iter().find(|one| one.head.contains("hidden"));
    if let Some(request) = hidden {
        return Ok(Verdict::broke(format!("the server got {}", short(&request.head))));
    }
    if let Some(what) = through.not_refused(&[trial::ALLOWED]) {
        return Ok(Verdict::broke(format!("{what}: {}", short(through.probe_report(what)))));
    }
    let without = control(testbed, &dialogues)?;
    let arrived = without.seen.requests.iter().filter(|one| one.head.contains("hidden")).count();
    if arrived < PATHS.len() {
        return Ok(Verdict::no_control(format!("without a check, {arrived} arrived")));
    }
    Ok(Verdict::held(format!("{} attempts refused", dialogues.len())))
}
