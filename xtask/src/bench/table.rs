//! The result, for people and for programs.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::memory::Memory;
use super::peer::{BELLJAR_LIMITS, BELLJAR_NO_LIMITS, BWRAP, BWRAP_SYNCED};
use super::rounds::Measured;

/// At most this many times bubblewrap with two syncs; the aim is below 1.
const MAX_OF_BWRAP: f64 = 1.5;
const MIN_OF_DOCKER: f64 = 20.0;
const MAX_RESIDENT_KIB: u64 = 4096;

pub(crate) fn text(measured: &[Measured], memory: &[Memory], rounds: usize) -> String {
    let mut text = format!(
        "\nstart of /bin/true, {rounds} interleaved rounds, milliseconds\n{:<22} {:<5} {:>8} {:>8} \
         {:>8} {:>14}\n",
        "case", "user", "p50", "p10", "/bwrap", "/bwrap+2 sync"
    );
    for case in measured {
        let _ = write!(text, "{:<22} {:<5} ", case.name, case.user);
        let _ = match &case.times {
            Ok(times) => writeln!(
                text,
                "{:>8.2} {:>8.2} {:>8} {:>14}",
                times.percentile(50),
                times.percentile(10),
                ratio(measured, case, BWRAP),
                ratio(measured, case, BWRAP_SYNCED),
            ),
            Err(why) => writeln!(text, "not measured: {why}"),
        };
    }
    text.push('\n');
    for target in targets(measured, memory) {
        let word = if target.held { "held" } else { "MISSED" };
        let _ = writeln!(text, "{word:<7} {}: {}", target.what, target.value);
    }
    text
}

pub(crate) fn json(measured: &[Measured], memory: &[Memory], rounds: usize) -> Result<String> {
    let cases: Vec<Value> = measured
        .iter()
        .map(|case| match &case.times {
            Ok(times) => json!({
                "name": case.name, "user": case.user,
                "p50_ms": times.percentile(50), "p10_ms": times.percentile(10),
            }),
            Err(why) => json!({ "name": case.name, "user": case.user, "not_measured": why }),
        })
        .collect();
    let pid1: Vec<Value> = memory
        .iter()
        .map(|one| {
            json!({
                "user": one.user, "resident_kib": one.resident_kib,
                "proportional_kib": one.proportional_kib,
            })
        })
        .collect();
    let targets: Vec<Value> = targets(measured, memory)
        .iter()
        .map(|target| json!({ "what": target.what, "value": target.value, "held": target.held }))
        .collect();
    let all = json!({ "rounds": rounds, "cases": cases, "pid1": pid1, "targets": targets });
    serde_json::to_string_pretty(&all).context("cannot write the result as JSON")
}

struct Target {
    what: String,
    value: String,
    held: bool,
}

fn targets(measured: &[Measured], memory: &[Memory]) -> Vec<Target> {
    let mut targets = Vec::new();
    let ours = [BELLJAR_NO_LIMITS, BELLJAR_LIMITS];
    for case in measured.iter().filter(|case| ours.contains(&case.name.as_str())) {
        let Some(own) = p50(case) else { continue };
        let who = format!("{} as {}", case.name, case.user);
        if let Some(peer) = p50_of(measured, BWRAP_SYNCED, &case.user) {
            targets.push(Target {
                what: format!("{who}, at most {MAX_OF_BWRAP} x {BWRAP_SYNCED} (aim: below 1)"),
                value: format!("{:.2} x", own / peer),
                held: own / peer <= MAX_OF_BWRAP,
            });
        }
        let docker = measured.iter().find(|case| case.name == "docker run").and_then(p50);
        if let Some(docker) = docker {
            targets.push(Target {
                what: format!("{who}, at least {MIN_OF_DOCKER} x faster than docker run"),
                value: format!("{:.1} x", docker / own),
                held: docker / own >= MIN_OF_DOCKER,
            });
        }
    }
    for one in memory {
        let proportional = one.proportional_kib.map_or_else(
            || "its share of shared pages is not readable".to_owned(),
            |kib| format!("{kib} KiB counting shared pages in parts"),
        );
        targets.push(Target {
            what: format!("PID 1 as {}, at most {MAX_RESIDENT_KIB} KiB resident", one.user),
            value: format!("{} KiB, {proportional}", one.resident_kib),
            held: one.resident_kib <= MAX_RESIDENT_KIB,
        });
    }
    targets
}

fn ratio(measured: &[Measured], case: &Measured, peer: &str) -> String {
    match (p50(case), p50_of(measured, peer, &case.user)) {
        (Some(own), Some(peer)) => format!("{:.2}", own / peer),
        _ => "-".to_owned(),
    }
}

fn p50(case: &Measured) -> Option<f64> {
    case.times.as_ref().ok().map(|times| times.percentile(50))
}

fn p50_of(measured: &[Measured], name: &str, user: &str) -> Option<f64> {
    measured.iter().find(|case| case.name == name && case.user == user).and_then(p50)
}
