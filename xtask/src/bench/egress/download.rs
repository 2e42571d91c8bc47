//! How fast one large download is.

use anyhow::Result;

use super::Bench;
use super::arm::{Arm, Carried, Kind};
use crate::bench::outcome::{Part, figure};

const MIN_OF_RELAY: f64 = 0.8;

pub(super) fn measure(bench: &Bench, arms: &[Arm]) -> Result<Part> {
    let mib = (bench.sizes.download >> 20) as f64;
    let rounds = bench.sizes.downloads;
    let title = format!("{mib:.0} MiB of zeros over one connection, {rounds} rounds in turn");
    let mut part = Part::new("download", title);
    let bytes = bench.sizes.download.to_string();
    for carried in [Carried::Bytes, Carried::Http, Carried::Opened] {
        let arms: Vec<&Arm> = arms.iter().filter(|arm| arm.carries(carried)).collect();
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); arms.len()];
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let at = (round + turn) % arms.len();
                let report = arms[at].measure(bench, carried, &["download", &bytes]);
                match report.and_then(|report| report.milliseconds("ns")) {
                    Ok(took) => rates[at].push(mib / took * 1000.0),
                    Err(error) if arms[at].is_peer() => {
                        part.missing(&arms[at].name, format!("{error:#}"))
                    }
                    Err(error) => return Err(error.context(arms[at].name.clone())),
                }
            }
        }
        report(&mut part, carried, &arms, &mut rates);
    }
    part.note("through a proxy: a tunnel; HTTP: the proxy sees the request; opened: TLS, which it ends and begins");
    Ok(part)
}

fn report(part: &mut Part, carried: Carried, arms: &[&Arm], rates: &mut [Vec<f64>]) {
    let mut typical = Vec::new();
    for all in rates.iter_mut() {
        all.sort_by(f64::total_cmp);
        typical.push(all.get(all.len() / 2).copied().unwrap_or(f64::NAN));
    }
    let of = |is: fn(&Kind) -> bool| {
        let at = arms.iter().position(|arm| is(&arm.kind));
        at.map_or(f64::NAN, |at| typical[at])
    };
    let direct = of(|kind| matches!(kind, Kind::Direct));
    let relay = of(|kind| matches!(kind, Kind::Relay { .. }));
    for ((arm, typical), all) in arms.iter().zip(&typical).zip(rates.iter()) {
        if all.is_empty() {
            continue; // it was named already
        }
        let best = all.last().copied().unwrap_or(f64::NAN);
        let mut figures = vec![figure("p50", *typical, "MiB/s"), figure("best", best, "MiB/s")];
        if carried == Carried::Bytes {
            figures.push(figure("to direct", typical / direct, "x"));
            figures.push(figure("to one relay", typical / relay, "x"));
        }
        let name = match carried {
            Carried::Http => ", HTTP",
            Carried::Opened => ", opened",
            Carried::Bytes | Carried::Tls => "",
        };
        part.row(format!("{}{name}", arm.name), figures);
        if carried == Carried::Bytes && matches!(arm.kind, Kind::Jail) {
            part.at_least(&arm.name, typical / relay, MIN_OF_RELAY, "x of one plain relay");
        }
    }
}
