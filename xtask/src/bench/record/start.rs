//! What the record adds to a start. A run without a record cannot be had, so it is come at from two
//! sides: the record's own calls, replayed alone; and a start whose home is in memory, where no sync
//! waits for a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::home::Home;
use belljar::spec::RunId;
use belljar::store::{self, Which};

use super::Bench;
use super::replay::{Sample, Written};
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::rounds::Times;

const MAX_COUNT: f64 = 2.0;
const WARM_UP: usize = 3;
const IN_MEMORY: &str = "/dev/shm";

pub(crate) fn measure(bench: &Bench) -> Result<Part> {
    let count = bench.sizes.starts;
    let mut part =
        Part::new("start", format!("`belljar run -- /bin/true`, {count} of each in turn"));
    let memory = match HomeInMemory::make() {
        Ok(home) => Some(home),
        Err(error) => {
            part.missing("start, home in memory", format!("{error:#}"));
            None
        }
    };
    for _ in 0..WARM_UP {
        once(bench, &bench.identity.home)?;
        memory.as_ref().map(|home| once(bench, &home.0)).transpose()?;
    }
    let sample = Sample::read(&newest(&bench.home()?)?)?;
    let replays = bench.another_home("replay")?;
    let (mut starts, mut in_memory, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..count as u64 {
        starts.push(once(bench, &bench.identity.home)?);
        if let Some(home) = &memory {
            in_memory.push(once(bench, &home.0)?);
        }
        let id = RunId::from_parts(1_700_000_000_000 + number, number);
        let started = Instant::now();
        sample.write(&replays, &id, Written::Whole)?;
        records.push(started.elapsed());
    }
    let (starts, records) = (Times::new(starts), Times::new(records));
    part.row("start, with its record", latency(&starts));
    part.row(
        format!("its record alone: {} events, two barriers, the ledger's row", sample.events()),
        latency(&records),
    );
    let (start, record) = (starts.percentile(50), records.percentile(50));
    part.row(
        "start less its record",
        vec![
            figure("p50", start - record, "ms"),
            figure("record's share", 100.0 * record / start, "%"),
        ],
    );
    if !in_memory.is_empty() {
        let in_memory = Times::new(in_memory);
        let mut figures = latency(&in_memory);
        figures.push(figure("on the disk it is", start / in_memory.percentile(50), "x"));
        part.row("start, home in memory", figures);
    }
    part.at_most("start, to start less its record", start / (start - record), MAX_COUNT, "x");
    part.note(
        "taken away whole, the record counts for more than it is: a run writes part of it while the \
         sandbox is being built",
    );
    Ok(part)
}

fn once(bench: &Bench, home: &Path) -> Result<Duration> {
    let mut command = bench.run(&[]);
    command.env("BELLJAR_HOME", home).arg("/bin/true");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().context("cannot start belljar")?;
    let time = started.elapsed();
    ensure!(status.success(), "`belljar run -- /bin/true` ended with {status}");
    Ok(time)
}

/// The directory of the newest run.
pub(super) fn newest(home: &Home) -> Result<PathBuf> {
    let runs = store::list(home, Which::All)?;
    let newest = runs.first().context("no run is there")?;
    Ok(home.run_dir(&newest.id))
}

/// Removed when dropped.
struct HomeInMemory(PathBuf);

impl HomeInMemory {
    fn make() -> Result<Self> {
        let path = Path::new(IN_MEMORY).join(format!("belljar-bench-{}", std::process::id()));
        // Fails if the name is taken, so no link can have been put there.
        fs::DirBuilder::new()
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let made = Self(path);
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&made.0, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("cannot set the mode of {}", made.0.display()))?;
        Ok(made)
    }
}

impl Drop for HomeInMemory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: cannot remove {}: {error}", self.0.display());
        }
    }
}
