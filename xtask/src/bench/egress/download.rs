//! Measures the throughput of one large download.

use anyhow::Result;

use super::EgressBench;
use super::arm::{ArmKind, Carried, ProxyArm};
use crate::bench::outcome::{Part, Target, at_least, figure};

const TO_RELAY: Target = at_least(0.8, "x");

pub(super) fn measure(bench: &EgressBench, arms: &[ProxyArm]) -> Result<Part> {
    let mib = (bench.sizes.download >> 20) as f64;
    let rounds = bench.sizes.downloads;
    let title = format!("{mib:.0} MiB of zeros over one connection, {rounds} rounds in turn");
    let mut part = Part::new("download", title);
    let bytes = bench.sizes.download.to_string();
    for carried in [Carried::Bytes, Carried::Http, Carried::Opened] {
        let arms: Vec<&ProxyArm> = arms.iter().filter(|arm| arm.carries(carried)).collect();
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

fn report(part: &mut Part, carried: Carried, arms: &[&ProxyArm], rates: &mut [Vec<f64>]) {
    let mut typical = Vec::new();
    for all in rates.iter_mut() {
        all.sort_by(f64::total_cmp);
        typical.push(all.get(all.len() / 2).copied().unwrap_or(f64::NAN));
    }
    let of = |is: fn(&ArmKind) -> bool| {
        let at = arms.iter().position(|arm| is(&arm.kind));
        at.map_or(f64::NAN, |at| typical[at])
    };
    let direct = of(|kind| matches!(kind, ArmKind::Direct));
    let relay = of(|kind| matches!(kind, ArmKind::Relay { .. }));
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
        if carried == Carried::Bytes && matches!(arm.kind, ArmKind::Jail) {
            part.compare(format!("{}, to one plain relay", arm.name), typical / relay, TO_RELAY);
        }
    }
}
