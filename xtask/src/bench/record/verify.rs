//! How fast a record is checked, beside reading and hashing the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use belljar::home::Home;
use belljar::record::{Anchor, HomeKey, LogState, Recorder, Secrets, Verdict, verify_run};
use belljar::spec::{EventKind, OutputStream, RunId};
use serde_json::json;

use super::events::begin;
use super::{RecordBench, RecordSizes};
use crate::bench::outcome::{Part, figure};
use crate::command;

/// What is in the output: not all the same, since a disk or a file system may notice.
const PIECE: usize = 64 << 10;
const CHECKS: usize = 3;

pub(crate) fn measure(bench: &RecordBench) -> Result<Part> {
    let RecordSizes { output, events, .. } = bench.sizes;
    let home = bench.another_home("verify")?;
    let mut part = Part::new("verify", "checking records, in the system's cache, best of 3");

    let large = long_output(&home, output)?;
    let mib = output as f64 / f64::from(1 << 20);
    let time = best(|| large.check(&home))?;
    part.row(format!("{mib:.0} MiB of kept output"), vec![figure("rate", mib / time, "MiB/s")]);
    let stdout = large.directory.join("stdout.bin");
    for program in ["cat", "sha256sum"] {
        let peer = best(|| read_with(program, &stdout))?;
        part.row(
            format!("{program} of the same file"),
            vec![
                figure("rate", mib / peer, "MiB/s"),
                figure("verify is", peer / time, "x as fast"),
            ],
        );
    }

    let many = many_events(&home, events)?;
    let log = fs::metadata(many.directory.join("events.jsonl")).context("there is no log")?.len();
    let time = best(|| many.check(&home))?;
    part.row(
        format!("a log of {events} events"),
        vec![
            figure("rate", events as f64 / time, "events/s"),
            figure("or", log as f64 / f64::from(1 << 20) / time, "MiB/s"),
        ],
    );
    Ok(part)
}

struct Recorded {
    id: RunId,
    directory: PathBuf,
    anchor: Anchor,
}

impl Recorded {
    fn check(&self, home: &Home) -> Result<()> {
        let key = HomeKey::load(home.path())?;
        let report =
            verify_run(&self.directory, &self.id, &key, Some(&self.anchor), LogState::Over);
        ensure!(report.verdict == Verdict::Sound, "the record is not sound: {:?}", report.verdict);
        Ok(())
    }
}

fn long_output(home: &Home, bytes: u64) -> Result<Recorded> {
    let id = RunId::from_parts(1_700_000_000_000, 1);
    let directory = home.run_dir(&id);
    fs::create_dir_all(&directory).context("cannot make a run's directory")?;
    let key = HomeKey::load_or_make(home.path())?.for_run(&id);
    let mut recorder = Recorder::create(&directory, key, Secrets::default(), bytes * 2)?;
    recorder.event(EventKind::RunStart, &json!({ "v": 2 }))?;
    let piece: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8).collect();
    for _ in 0..bytes / PIECE as u64 {
        recorder.output(0, OutputStream::Stdout, &piece, Instant::now())?;
    }
    end(id, directory, recorder)
}

fn many_events(home: &Home, count: u64) -> Result<Recorded> {
    let id = RunId::from_parts(1_700_000_000_000, 2);
    let (directory, mut recorder) = begin(home, &id)?;
    recorder.event(EventKind::RunStart, &json!({ "v": 2 }))?;
    for exec in 0..count {
        let data = json!({ "exec": exec, "argv": ["make", "test"], "workdir": "/workspace" });
        recorder.event(EventKind::ExecStart, &data)?;
    }
    end(id, directory, recorder)
}

fn end(id: RunId, directory: PathBuf, mut recorder: Recorder) -> Result<Recorded> {
    recorder.stop(&json!({ "reason": "exited" }))?;
    let record = json!({ "v": 2, "outcome": { "reason": "exited" } });
    fs::write(directory.join("run.json"), record.to_string()).context("cannot write run.json")?;
    let anchor = recorder.anchor().context("the log cannot be looked at")?;
    Ok(Recorded { id, directory, anchor })
}

fn read_with(program: &str, file: &Path) -> Result<()> {
    let mut reader = Command::new(program);
    reader.arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    let status = reader.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "`{}` ended with {status}", command::line(&reader));
    Ok(())
}

/// In seconds.
fn best(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..CHECKS {
        let started = Instant::now();
        work()?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best)
}
