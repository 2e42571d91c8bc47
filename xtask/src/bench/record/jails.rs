//! Many kept sandboxes at once: what each costs, and whether the last starts as fast as the first.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::Sandbox;
use tokio::runtime::Runtime;

use super::Bench;
use super::exec::start;
use crate::bench::memory;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::rounds::Times;
use crate::processes;

/// Compared at either end.
const FEW: usize = 10;
/// After this a supervisor has all that it will have.
const COME_TO_REST: Duration = Duration::from_secs(3);
/// Processes and groups that were killed may take a moment to be gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn measure(bench: &Bench) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let count = bench.sizes.jails;
    ensure!(count > 0, "--jails needs at least one");
    let mut part =
        Part::new("jails", format!("{count} kept sandboxes at once, started one after the other"));
    let before = Traces::find()?;
    let mut sandboxes = Vec::with_capacity(count);
    let mut times = Vec::with_capacity(count);
    runtime.block_on(start(bench))?; // and dropped: the home and the caches are warm
    for _ in 0..count {
        let started = Instant::now();
        sandboxes.push(runtime.block_on(start(bench))?);
        times.push(started.elapsed());
    }
    starts(&mut part, &times);
    std::thread::sleep(COME_TO_REST);
    memory_each(&mut part, count)?;
    let last = &sandboxes[count - 1];
    let works = runtime.block_on(last.exec(["echo", "sealed"]).output())?;
    ensure!(works.stdout == b"sealed\n", "the last sandbox runs nothing");

    let ids: BTreeSet<String> = sandboxes.iter().map(|one| one.id().to_string()).collect();
    let started = Instant::now();
    runtime.block_on(stop_all(sandboxes))?;
    let all = started.elapsed().as_secs_f64();
    part.row(
        "stopping all, at once",
        vec![figure("in all", all, "s"), figure("each", all * 1000.0 / count as f64, "ms")],
    );
    let left = left_behind(bench, &before, &ids)?;
    part.at_most("processes, live entries, mounts, control groups", left as f64, 0.0, "left");
    Ok(part)
}

fn starts(part: &mut Part, times: &[Duration]) {
    let few = FEW.min(times.len());
    let median = |of: &[Duration]| Times::new(of.to_vec()).percentile(50);
    let (first, last) = (median(&times[..few]), median(&times[times.len() - few..]));
    part.row("start, all of them", latency(&Times::new(times.to_vec())));
    part.row(
        format!("start, median of the first {few} and of the last {few}"),
        vec![
            figure("first", first, "ms"),
            figure("last", last, "ms"),
            figure("last is", last / first, "x the first"),
        ],
    );
    let one = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0);
    let (first, last) = (one(times.first()), one(times.last()));
    part.row(
        format!("start, the first and number {}", times.len()),
        vec![
            figure("first", first, "ms"),
            figure("last", last, "ms"),
            figure("last is", last / first, "x the first"),
        ],
    );
}

/// Of everything that is ours: supervisors and PID 1s.
fn memory_each(part: &mut Part, count: usize) -> Result<()> {
    let (mut proportional, mut private, mut resident, mut processes) = (0, 0, 0, 0);
    for pid in ours()? {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
            .with_context(|| format!("cannot read the memory of process {pid}"))?;
        let kib = |key| memory::kib(&rollup, key).unwrap_or(0);
        proportional += kib("Pss:");
        private += kib("Private_Clean:") + kib("Private_Dirty:");
        resident += kib("Rss:");
        processes += 1;
    }
    let each = |total: u64| total as f64 / count as f64;
    part.row(
        "memory of each, supervisor and PID 1",
        vec![
            figure("PSS", each(proportional), "KiB"),
            figure("private", each(private), "KiB"),
            figure("RSS", each(resident), "KiB"),
            figure("in", each(processes), "processes"),
        ],
    );
    part.note("PSS counts a page that N processes share as a page in N parts: with fewer sandboxes each has more");
    Ok(())
}

/// Our descendants that are belljar; what runs inside them is not.
fn ours() -> Result<Vec<u32>> {
    let own = std::process::id();
    let mut family = processes::descendants(own)?;
    family.retain(|pid| *pid != own && is_belljar(*pid));
    Ok(family)
}

fn is_belljar(pid: u32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|byte| *byte == 0);
    words.any(|word| word == b"__init" || word == b"__supervise")
}

async fn stop_all(sandboxes: Vec<Sandbox>) -> Result<()> {
    let mut stops = tokio::task::JoinSet::new();
    for sandbox in sandboxes {
        stops.spawn(async move { sandbox.stop().await.map(drop) });
    }
    while let Some(stopped) = stops.join_next().await {
        stopped.context("a stop failed")??;
    }
    Ok(())
}

/// What must be as it was.
struct Traces {
    mounts: usize,
    processes: usize,
}

impl Traces {
    fn find() -> Result<Self> {
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").context("cannot list the mounts")?;
        Ok(Self { mounts: mounts.lines().count(), processes: ours()?.len() })
    }
}

fn left_behind(bench: &Bench, before: &Traces, ids: &BTreeSet<String>) -> Result<usize> {
    let deadline = Instant::now() + GONE_TIMEOUT;
    loop {
        let now = Traces::find()?;
        let live = fs::read_dir(bench.home()?.live()).context("cannot list the live runs")?.count();
        let groups = groups_of(Path::new("/sys/fs/cgroup"), ids, 6);
        let left = live
            + groups
            + now.processes.saturating_sub(before.processes)
            + now.mounts.saturating_sub(before.mounts);
        if left == 0 || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Control groups that carry the id of one of these runs.
fn groups_of(directory: &Path, ids: &BTreeSet<String>, depth: usize) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let directories =
        entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let count = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let own = usize::from(ids.iter().any(|id| name.contains(id.as_str())));
        let below = if depth == 0 { 0 } else { groups_of(&entry.path(), ids, depth - 1) };
        own + below
    };
    directories.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_group_of_a_run_is_found_and_a_strangers_is_not() {
        let scratch = Scratch::new("jails-test").unwrap();
        fs::create_dir_all(scratch.path().join("memory/belljar/run-abc")).unwrap();
        fs::create_dir_all(scratch.path().join("memory/system/abd")).unwrap();
        let found = |id: &str| groups_of(scratch.path(), &BTreeSet::from([id.to_owned()]), 6);
        assert_eq!(found("abc"), 1);
        assert_eq!(found("xyz"), 0);
    }
}
