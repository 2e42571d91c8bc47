//! `/bin/true` in a new container.

use anyhow::{Result, anyhow};

use super::Bench;
use super::arm::Arm;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::peer::{Case, Then};
use crate::bench::rounds;

/// The aim is below 1.
const MAX_COUNT: f64 = 1.1;

pub(super) fn measure(bench: &Bench, arm: &Arm) -> Result<Part> {
    let rounds = bench.sizes.starts;
    let mut part = Part::new(
        "start",
        format!("/bin/true in a new container of {}, {rounds} of each in turn", arm.name),
    );
    let [ours, theirs] = arm.names("run");
    let case = |name: &str, words: Vec<String>| Case {
        name: name.to_owned(),
        identity: bench.identity.clone(),
        program: "env".into(),
        words,
        then: Then::Nothing,
    };
    let cases =
        vec![case(&ours, arm.belljar_run(&bench.belljar)), case(&theirs, arm.client_run(&[]))];
    let mut found = Vec::new();
    for measured in rounds::measure(cases, rounds)? {
        let times = measured.times.map_err(|why| anyhow!("{}: {why}", measured.name))?;
        part.row(measured.name, latency(&times));
        found.push(times);
    }
    let [our_times, their_times] = &found[..] else { return Err(anyhow!("two were measured")) };
    let ratio = |percent| our_times.percentile(percent) / their_times.percentile(percent);
    part.row(
        "belljar is",
        vec![figure("p50", ratio(50), "x"), figure("p10", ratio(10), "x of the other")],
    );
    part.at_most(&format!("{ours}, to {theirs} (aim: below 1), p50"), ratio(50), MAX_COUNT, "x");
    part.note(
        "belljar's has a workspace, limits, a list of system calls, an attestation and a durable record \
         besides; the other has --network none --read-only --cap-drop ALL --user",
    );
    Ok(part)
}
