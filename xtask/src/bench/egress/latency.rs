//! Measures the latency of small requests and of new connections.

use anyhow::Result;

use super::EgressBench;
use super::arm::{ArmKind, Carried, ProxyArm};
use crate::bench::outcome::{Part, Target, at_most, figure};

/// Added at p50, in milliseconds.
const ADDED: Target = at_most(0.5, "ms");
const ADDED_OPENED: Target = at_most(1.0, "ms");

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connections {
    /// All over one.
    Reused,
    /// Each over its own.
    New,
}

const CASES: [(Carried, Connections); 8] = [
    (Carried::Bytes, Connections::Reused),
    (Carried::Bytes, Connections::New),
    (Carried::Http, Connections::Reused),
    (Carried::Http, Connections::New),
    (Carried::Tls, Connections::Reused),
    (Carried::Tls, Connections::New),
    (Carried::Opened, Connections::Reused),
    (Carried::Opened, Connections::New),
];

#[derive(Clone, Copy, Debug, Default)]
struct LatencyResult {
    p10: f64,
    p50: f64,
    p99: f64,
}

pub(super) fn measure(bench: &EgressBench, arms: &[ProxyArm]) -> Result<Part> {
    let rounds = bench.sizes.rounds;
    let title = format!("a small request and its answer, {rounds} rounds in turn");
    let mut part = Part::new("latency", title);
    let mut beside = [LatencyResult::default(); CASES.len()];
    for (number, (carried, connections)) in CASES.into_iter().enumerate() {
        let arms: Vec<&ProxyArm> = arms.iter().filter(|arm| arm.carries(carried)).collect();
        let mut all: Vec<Vec<LatencyResult>> = vec![Vec::new(); arms.len()];
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let at = (round + turn) % arms.len();
                match one(bench, arms[at], carried, connections) {
                    Ok(found) => all[at].push(found),
                    Err(error) if arms[at].is_peer() => {
                        part.missing(&arms[at].name, format!("{error:#}"))
                    }
                    Err(error) => return Err(error.context(arms[at].name.clone())),
                }
            }
        }
        for (arm, found) in arms.iter().zip(&all) {
            let Some(found) = middle(found) else { continue }; // it was named already
            if matches!(arm.kind, ArmKind::Direct) {
                beside[number] = found;
            }
            // What is opened is compared with TLS that is not opened.
            let direct =
                if carried == Carried::Opened { beside[number - 2] } else { beside[number] };
            report(&mut part, arm, (carried, connections), found, found.p50 - direct.p50);
        }
    }
    Ok(part)
}

fn one(
    bench: &EgressBench,
    arm: &ProxyArm,
    carried: Carried,
    connections: Connections,
) -> Result<LatencyResult> {
    let (word, count) = match connections {
        Connections::Reused => ("requests", bench.sizes.requests),
        Connections::New => ("connections", bench.sizes.connections),
    };
    let report = arm.measure(bench, carried, &[word, &count.to_string()])?;
    Ok(LatencyResult {
        p10: report.milliseconds("p10 ns")?,
        p50: report.milliseconds("p50 ns")?,
        p99: report.milliseconds("p99 ns")?,
    })
}

/// Of the rounds, the one in the middle.
fn middle(found: &[LatencyResult]) -> Option<LatencyResult> {
    let mut sorted = found.to_vec();
    sorted.sort_by(|a, b| a.p50.total_cmp(&b.p50));
    sorted.get(sorted.len() / 2).copied()
}

fn report(
    part: &mut Part,
    arm: &ProxyArm,
    (carried, connections): (Carried, Connections),
    found: LatencyResult,
    added: f64,
) {
    let what = match carried {
        Carried::Bytes => "plain",
        Carried::Http => "plain, seen",
        Carried::Tls => "TLS",
        Carried::Opened => "TLS, opened",
    };
    let how = match connections {
        Connections::Reused => "reused",
        Connections::New => "new connection",
    };
    let name = format!("{what}, {how}: {}", arm.name);
    let figures = vec![
        figure("p50", found.p50, "ms"),
        figure("p10", found.p10, "ms"),
        figure("p99", found.p99, "ms"),
        figure("added", added, "ms"),
    ];
    part.row(&name, figures);
    // A new connection is another one towards the server too, so it is shown and has no target.
    if matches!(arm.kind, ArmKind::Jail) && connections == Connections::Reused {
        let target = if carried == Carried::Opened { ADDED_OPENED } else { ADDED };
        part.compare(format!("{name}: added at p50"), added, target);
    }
}
