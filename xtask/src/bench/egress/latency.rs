//! What a small request waits for.

use anyhow::Result;

use super::Bench;
use super::arm::{Arm, Carried, Kind};
use crate::bench::outcome::{Part, figure};

/// Added at p50, in milliseconds.
const MAX_ADDED: f64 = 0.5;
const MAX_ADDED_OPENED: f64 = 1.0;

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
struct Found {
    p10: f64,
    p50: f64,
    p99: f64,
}

pub(super) fn measure(bench: &Bench, arms: &[Arm]) -> Result<Part> {
    let rounds = bench.sizes.rounds;
    let title = format!("a small request and its answer, {rounds} rounds in turn");
    let mut part = Part::new("latency", title);
    let mut beside = [Found::default(); CASES.len()];
    for (number, (carried, connections)) in CASES.into_iter().enumerate() {
        let arms: Vec<&Arm> = arms.iter().filter(|arm| arm.carries(carried)).collect();
        let mut all: Vec<Vec<Found>> = vec![Vec::new(); arms.len()];
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
            if matches!(arm.kind, Kind::Direct) {
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

fn one(bench: &Bench, arm: &Arm, carried: Carried, connections: Connections) -> Result<Found> {
    let (word, count) = match connections {
        Connections::Reused => ("requests", bench.sizes.requests),
        Connections::New => ("connections", bench.sizes.connections),
    };
    let report = arm.measure(bench, carried, &[word, &count.to_string()])?;
    Ok(Found {
        p10: report.milliseconds("p10 ns")?,
        p50: report.milliseconds("p50 ns")?,
        p99: report.milliseconds("p99 ns")?,
    })
}

/// Of the rounds, the one in the middle.
fn middle(found: &[Found]) -> Option<Found> {
    let mut sorted = found.to_vec();
    sorted.sort_by(|a, b| a.p50.total_cmp(&b.p50));
    sorted.get(sorted.len() / 2).copied()
}

fn report(
    part: &mut Part,
    arm: &Arm,
    (carried, connections): (Carried, Connections),
    found: Found,
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
    if matches!(arm.kind, Kind::Jail) && connections == Connections::Reused {
        let most = if carried == Carried::Opened { MAX_ADDED_OPENED } else { MAX_ADDED };
        part.at_most(&format!("{name}: added at p50"), added, most, "ms");
    }
}
