//! `/bin/true` in a container that runs already: through belljar's channel, and through the engine.

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::ContainersBench;
use super::arm::EngineArm;
use super::kept::KeptContainer;
use crate::bench::kept_run::KeptRun;
use crate::bench::outcome::{Part, Target, at_least};
use crate::bench::rounds::{self, Case, Rounds};

const TO_ENGINE: Target = at_least(10.0, "x as fast");

pub(super) fn measure(bench: &ContainersBench, arm: &EngineArm) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let count = bench.sizes.execs;
    let mut part = Part::new(
        "exec",
        format!("/bin/true in a container of {} that runs, {count} of each in turn", arm.name),
    );
    let builder = KeptRun::builder(&bench.identity, &bench.belljar);
    let kept = KeptRun::start(&runtime, builder.backend(arm.backend).image(&arm.image))?;
    let container = KeptContainer::start(&bench.identity, arm, &[])?;
    let [ours, theirs] = arm.names("exec");
    let library = format!("belljar's library, {}", arm.name);
    let cases = vec![
        Case::timed(&library, || kept.exec_true()),
        Case::command(&ours, || kept.exec_command(&bench.identity, &bench.belljar)),
        Case::command(&theirs, || container.exec(&["/bin/true"])),
    ];
    let found = rounds::measure(cases, Rounds::back_to_back(count));
    found.add_rows(&mut part);
    kept.stop()?;
    for name in [&library, &ours] {
        let faster = found.times(&theirs)?.percentile(50) / found.times(name)?.percentile(50);
        part.compare(format!("{name}, against {theirs}, p50"), faster, TO_ENGINE);
    }
    Ok(part)
}
