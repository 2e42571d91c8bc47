//! `/bin/true` in a sandbox that runs already: through the library and through the command.

use std::path::Path;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::{ExecBench, peers};
use crate::bench::containers::kept::KeptContainer;
use crate::bench::kept_run::KeptRun;
use crate::bench::outcome::{Part, Target, at_least, figure, latency};
use crate::bench::rounds::{self, Case, Rounds, Times};
use crate::bench::static_program::{self, ABOUT_NOTHING, NOTHING};

const AT_ONCE: usize = 8;
const LIBRARY: &str = "belljar, library";
const COMMAND: &str = "belljar exec";
const PLAIN: &str = "/bin/true, no sandbox";

/// Against `docker exec`.
const TARGETS: [(&str, Target); 2] = [
    (COMMAND, at_least(22.0, "x as fast").aim(28.0)),
    (LIBRARY, at_least(40.0, "x as fast").aim(50.0)),
];

pub(super) fn measure(bench: &ExecBench) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let rounds = Rounds::with_pauses(bench.sizes.execs);
    let title = format!(
        "/bin/true in a sandbox that runs, {} rounds in turn, {} ms of rest before each",
        rounds.count,
        rounds.pause.as_millis()
    );
    let mut part = Part::new("exec", title);
    let identity = &bench.identity;
    let nothing = static_program::build(bench.scratch.path())?;
    let kept = KeptRun::start(&runtime, KeptRun::builder(identity, &bench.belljar))?;
    let mut containers = Vec::new();
    for arm in &bench.engines {
        containers.push((arm, KeptContainer::start(identity, arm, &[])?));
    }
    let mut cases = vec![
        Case::timed(LIBRARY, || kept.exec_true()),
        Case::command(COMMAND, || kept.exec_command(identity, &bench.belljar)),
        Case::command(PLAIN, || identity.command(Path::new("/bin/true"))),
        Case::command(NOTHING, || identity.command(&nothing)),
    ];
    cases.extend(peers::nsenter());
    cases.extend(peers::new_bwrap(identity));
    for (arm, container) in &containers {
        let name = format!("{} exec", arm.name);
        cases.push(Case::command(name, || container.exec(&["/bin/true"])));
    }
    if containers.is_empty() {
        part.missing("docker exec", "no private engine runs");
    }
    let found = rounds::measure(cases, rounds);
    found.add_rows(&mut part);
    let in_a_row: Result<Vec<_>> = (0..rounds.count).map(|_| kept.exec_true()).collect();
    part.row("library, one directly after the other", latency(&Times::new(in_a_row?)));
    let rate = kept.execs_a_second(rounds.count, AT_ONCE)?;
    part.row(format!("library, {AT_ONCE} at once"), vec![figure("rate", rate, "execs/s")]);
    kept.stop()?;
    for (name, target) in TARGETS {
        found.times(name)?; // belljar's own have to be measurable
        part.compare_found(
            format!("{name}, against docker exec"),
            found.ratio("docker exec", name),
            target,
        );
        let floors = [("a static process", NOTHING), ("/bin/true", PLAIN)];
        let figures = floors.iter().filter_map(|(word, floor)| {
            found.ratio(name, floor).map(|ratio| figure(word, ratio, "x"))
        });
        part.row(format!("{name}, ratio to"), figures.collect());
    }
    part.note(ABOUT_NOTHING);
    Ok(part)
}
