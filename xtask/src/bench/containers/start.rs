//! `/bin/true` in a new container.

use anyhow::Result;

use super::ContainersBench;
use super::arm::EngineArm;
use crate::bench::outcome::{Part, Target, at_most, figure};
use crate::bench::rounds::{self, Case, Rounds};

const TO_ENGINE: Target = at_most(0.55, "x").aim(0.5);

pub(super) fn measure(bench: &ContainersBench, arm: &EngineArm) -> Result<Part> {
    let rounds = bench.sizes.starts;
    let mut part = Part::new(
        "start",
        format!("/bin/true in a new container of {}, {rounds} of each in turn", arm.name),
    );
    let [ours, theirs] = arm.names("run");
    let case = |name: &str, words| Case::sandbox(name, &bench.identity, "env", words);
    let cases =
        vec![case(&ours, arm.belljar_run(&bench.belljar)), case(&theirs, arm.client_run(&[]))];
    let found = rounds::measure(cases, Rounds::with_pauses(rounds));
    found.add_rows(&mut part);
    let (our_times, their_times) = (found.times(&ours)?, found.times(&theirs)?);
    let ratio = |percent| our_times.percentile(percent) / their_times.percentile(percent);
    part.row("belljar is", vec![figure("p50", ratio(50), "x"), figure("p10", ratio(10), "x")]);
    part.compare(format!("{ours}, to {theirs}, p50"), ratio(50), TO_ENGINE);
    part.note(
        "belljar's has a workspace, limits, a list of system calls, an attestation and a durable record \
         besides; the other has --network none --read-only --cap-drop ALL --user",
    );
    Ok(part)
}
