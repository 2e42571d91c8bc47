//! Measures how many events are written per second, and their size in the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use belljar::home::Home;
use belljar::record::{EventReader, HomeKey, Recorder, Secrets};
use belljar::spec::{EventKind, RunId};
use belljar::store::{self, Which};
use serde_json::json;

use super::pipeline::{self, Ran, Sink};
use super::{RecordBench, RecordSizes};
use crate::bench::outcome::{Figure, Part, figure};

/// Of the streams; the built-in `limits.output`.
const OUTPUT_LIMIT: u64 = 256 << 20;

pub(crate) fn measure(bench: &RecordBench) -> Result<Part> {
    let RecordSizes { events, synced_events, small_writes, .. } = bench.sizes;
    let mut part = Part::new("events", "what goes into the log");
    let together = through_library(&bench.another_home("events")?, events, Synced::AtTheEnd)?;
    part.row(
        format!("library, {events} events, on the disk at the end"),
        vec![together.rate(), together.each()],
    );
    let singly = through_library(&bench.another_home("barriers")?, synced_events, Synced::Each)?;
    part.row(
        format!("library, {synced_events} events, each on the disk before the next"),
        vec![singly.rate(), figure("each", singly.time.as_secs_f64() * 1e3 / singly.events, "ms")],
    );
    small(bench, &mut part, small_writes)?;
    part.note("output that comes within 50 ms shares an event, so a write is not an event");
    Ok(part)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Synced {
    Each,
    AtTheEnd,
}

struct Written {
    events: f64,
    bytes: f64,
    time: Duration,
}

impl Written {
    fn rate(&self) -> Figure {
        figure("rate", self.events / self.time.as_secs_f64(), "events/s")
    }

    fn each(&self) -> Figure {
        figure("log", self.bytes / self.events, "bytes an event")
    }
}

/// A new run's directory with a writer for it.
pub(super) fn begin(home: &Home, id: &RunId) -> Result<(PathBuf, Recorder)> {
    let directory = home.run_dir(id);
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let key = HomeKey::load_or_make(home.path())?.for_run(id);
    let recorder = Recorder::create(&directory, key, Secrets::default(), OUTPUT_LIMIT)?;
    Ok((directory, recorder))
}

fn through_library(home: &Home, count: u64, synced: Synced) -> Result<Written> {
    let (directory, mut recorder) = begin(home, &RunId::from_parts(1_700_000_000_000, 1))?;
    recorder.event(EventKind::RunStart, &json!({ "v": 2 }))?;
    let started = Instant::now();
    for exec in 0..count {
        let data = json!({ "exec": exec, "argv": ["make", "test"], "workdir": "/workspace" });
        recorder.event(EventKind::ExecStart, &data)?;
        if synced == Synced::Each {
            recorder.barrier()?;
        }
    }
    recorder.barrier()?;
    let time = started.elapsed();
    let (_, bytes) = size_of_log(&directory)?;
    Ok(Written { events: count as f64, bytes, time })
}

/// Events and bytes.
fn size_of_log(directory: &Path) -> Result<(f64, f64)> {
    let mut reader = EventReader::open(directory)?;
    let mut events = 0;
    while reader.next()?.is_some() {
        events += 1;
    }
    Ok((f64::from(events), reader.offset() as f64))
}

/// A shell that writes a line at a time.
fn small(bench: &RecordBench, part: &mut Part, count: u64) -> Result<()> {
    let script =
        format!("i=0; while [ $i -lt {count} ]; do echo 'one line at a time'; i=$((i+1)); done");
    let bytes = count * 19;
    let file = bench.scratch.path().join("small.out");
    let mut outside = Command::new("/bin/sh");
    outside.args(["-c", &script]);
    let Ran { time: peer, .. } = pipeline::run(outside, Sink::Cat, &file, bytes)?;
    let mut ours = bench.run(&[]);
    ours.args(["/bin/sh", "-c", &script]);
    let Ran { time, .. } = pipeline::run(ours, Sink::Cat, &file, bytes)?;
    let home = bench.home()?;
    let newest = store::list(&home, Which::All)?.into_iter().next().context("no run is there")?;
    let (events, log) = size_of_log(&home.run_dir(&newest.id))?;
    let rate = |time: Duration| figure("rate", count as f64 / time.as_secs_f64(), "writes/s");
    part.row(format!("sh: {count} writes of a line | cat > file"), vec![rate(peer)]);
    part.row(
        "the same in belljar".to_owned(),
        vec![
            rate(time),
            figure("ratio", peer.as_secs_f64() / time.as_secs_f64(), "x"),
            figure("in all", events, "events"),
            figure("log", log / events, "bytes an event"),
        ],
    );
    Ok(())
}
