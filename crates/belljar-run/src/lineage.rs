//! Reads the lineage of a run: the chain of runs that it resumes, back to the first one.
//!
//! Each resumed run has its own record. Every event is authenticated; a record that is missing, or that is not the one
//! that was resumed, ends the lineage, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use belljar_spec::{
    AgentEvent, AgentReport, AgentTotals, EventKind, IterationReport, ResumeKind, ResumeOrigin,
    RunId, StopReason, TokenUsage, counted,
};
use serde::{Deserialize, Serialize};

use belljar_record::home::Home;
use belljar_record::store::{self, Life, life};
use belljar_record::{EventReader, HomeKey, KeyError, ReadError};
use belljar_workspace::checkpoint;

/// A longer chain is treated as a loop.
const MAX_RUNS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot read the record of run {run}")]
    Record {
        run: RunId,
        #[source]
        error: ReadError,
    },
    #[error("the record of run {run} does not begin with a start event; see: belljar verify {run}")]
    NoStart { run: RunId },
    #[error("cannot list the runs")]
    Runs(#[source] std::io::Error),
}

/// A run and the runs that it continues.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// Oldest first; the requested run is the last.
    pub runs: Vec<LineageMember>,
    /// Of the whole lineage, each number once, in order.
    pub iterations: Vec<LineIteration>,
    /// Why the lineage does not go back to the first run.
    pub broken: Option<Broken>,
    /// Runs that start from a checkpoint of this one, oldest first.
    pub children: Vec<Child>,
}

/// One run of the lineage.
#[derive(Clone, Debug)]
pub struct LineageMember {
    pub run: RunId,
    /// `None`: it was not resumed or forked from another run.
    pub origin: Option<ResumeOrigin>,
    /// The last hash of its log so far.
    pub head: String,
    /// The iteration that was started last, finished or not.
    pub last_started: Option<u32>,
    /// What was used after its last checkpoint, in an iteration that did not finish.
    pub unfinished: UnfinishedUsage,
    /// `None` while it is live, or if its end is not recorded yet.
    pub reason: Option<StopReason>,
    /// The agent's report at the end.
    pub agent: Option<AgentReport>,
    pub life: Life,
}

/// Usage that is not part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedUsage {
    pub usage: TokenUsage,
    pub turns: u64,
    pub elapsed_ms: u64,
}

/// A finished iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineIteration {
    /// The run that it was part of.
    pub run: RunId,
    #[serde(flatten)]
    pub report: IterationReport,
    /// Whether its checkpoint still exists, so that a run can resume from it.
    pub kept: bool,
}

/// Why a lineage is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Broken {
    /// The record was removed.
    Gone { run: RunId },
    /// It is not the record that was resumed.
    Changed { run: RunId },
    /// It cannot be read.
    Unreadable { run: RunId, message: String },
    /// A run that continues itself, or a chain that is too long.
    Endless { run: RunId },
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone { run } => write!(f, "the record of run {run} was removed"),
            Self::Changed { run } => {
                write!(f, "the record of run {run} has changed since it was resumed")
            }
            Self::Unreadable { run, message } => write!(f, "run {run}: {message}"),
            Self::Endless { run } => write!(f, "run {run} continues itself"),
        }
    }
}

/// A run that was resumed or forked from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    pub run: RunId,
    pub kind: ResumeKind,
    /// The iteration of its parent that it starts after.
    pub iteration: u32,
}

impl Lineage {
    /// The requested run.
    pub fn last(&self) -> Option<&LineageMember> {
        self.runs.last()
    }

    /// Iterations with a checkpoint, newest first.
    pub fn checkpoints(&self) -> impl Iterator<Item = &LineIteration> {
        self.iterations.iter().rev().filter(|one| one.kept)
    }

    pub fn iteration(&self, number: u32) -> Option<&LineIteration> {
        self.iterations.iter().find(|one| one.report.iteration == number)
    }

    /// Usage so far, including the unfinished iteration. Known even if earlier records were removed.
    pub fn totals(&self) -> AgentTotals {
        let Some(last) = self.last() else { return AgentTotals::default() };
        let newest = self.iterations.iter().rev().find(|one| one.run == last.run);
        let inherited = || last.origin.as_ref().map(|origin| origin.totals.clone());
        let recorded = newest.map(|newest| newest.report.totals.clone()).or_else(inherited);
        let mut totals = recorded.unwrap_or_default();
        let UnfinishedUsage { usage, turns, elapsed_ms } = &last.unfinished;
        totals.usage.add(usage);
        totals.turns = counted(totals.turns, *turns);
        totals.elapsed_ms = totals.elapsed_ms.saturating_add(*elapsed_ms);
        totals
    }
}

/// Reads the lineage of `run`, back to a new run or a fork, which starts counting again.
pub fn lineage(home: &Home, run: &RunId) -> Result<Lineage, LineageError> {
    let key = HomeKey::load(home.path())?;
    let mut seen = BTreeSet::from([*run]);
    let mut read = vec![read_run(home, &key, run, None)?.0];
    let mut broken = None;
    while let Some(origin) = continued_origin(&read) {
        let before = origin.from;
        if !seen.insert(before) || read.len() >= MAX_RUNS {
            broken = Some(Broken::Endless { run: before });
            break;
        }
        match read_run(home, &key, &before, Some(&origin.head)) {
            Ok((one, HeadCheck::Found)) => read.push(one),
            Ok((_, HeadCheck::Missing)) => {
                broken = Some(Broken::Changed { run: before });
                break;
            }
            Err(error) => {
                broken = Some(broken_because(home, before, &error));
                break;
            }
        }
    }
    let iterations = iterations(home, &read);
    let children = children(home, &key, run)?;
    let runs = read.into_iter().rev().map(|one| one.member).collect();
    Ok(Lineage { runs, iterations, broken, children })
}

struct ReadRun {
    member: LineageMember,
    reports: Vec<IterationReport>,
}

/// Whether a record contains the hash that the resumed run refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadCheck {
    Found,
    Missing,
}

#[derive(Deserialize)]
struct RunStartData {
    #[serde(default)]
    resumed_from: Option<ResumeOrigin>,
}

#[derive(Deserialize)]
struct RunStopData {
    reason: StopReason,
    #[serde(default)]
    agent: Option<AgentReport>,
}

#[derive(Deserialize)]
struct IterationStartData {
    iteration: u32,
}

/// The origin of the oldest run so far, if that run resumes another.
fn continued_origin(read: &[ReadRun]) -> Option<ResumeOrigin> {
    let origin = read.last()?.member.origin.as_ref()?;
    (origin.kind == ResumeKind::Resume).then(|| origin.clone())
}

/// `known` is a hash that the record should contain.
fn read_run(
    home: &Home,
    key: &HomeKey,
    run: &RunId,
    known: Option<&str>,
) -> Result<(ReadRun, HeadCheck), LineageError> {
    let record = |error| LineageError::Record { run: *run, error };
    let life = life::of(home, run); // before the log, so that a run that ends meanwhile is read as ended
    let mut events = open(&home.run_dir(run), key, run).map_err(record)?;
    let first = events.next().map_err(record)?;
    let start = first.filter(|event| event.kind == EventKind::RunStart);
    let start = start.ok_or(LineageError::NoStart { run: *run })?;
    let RunStartData { resumed_from: origin } =
        serde_json::from_value(start.data).map_err(|_| LineageError::NoStart { run: *run })?;
    let (last_started, reason, agent) = (None, None, None);
    let unfinished = UnfinishedUsage::default();
    let mut checkpoint_at = start.mono_ns;
    let mut member = LineageMember {
        run: *run,
        origin,
        head: start.hash,
        last_started,
        unfinished,
        reason,
        agent,
        life,
    };
    let is_known = |hash: &str| known.is_none_or(|known| known == hash);
    let mut check = if is_known(&member.head) { HeadCheck::Found } else { HeadCheck::Missing };
    let mut reports = Vec::new();
    while let Some(event) = events.next().map_err(record)? {
        if check == HeadCheck::Missing && is_known(&event.hash) {
            check = HeadCheck::Found;
        }
        member.head = event.hash;
        // Both times are from the same clock: a run does not survive a reboot.
        member.unfinished.elapsed_ms = event.mono_ns.saturating_sub(checkpoint_at) / 1_000_000;
        match event.kind {
            EventKind::IterationStart => {
                let started: Option<IterationStartData> = serde_json::from_value(event.data).ok();
                member.last_started =
                    started.map(|started| started.iteration).or(member.last_started);
            }
            EventKind::Checkpoint => {
                reports.extend(serde_json::from_value::<IterationReport>(event.data).ok());
                member.unfinished = UnfinishedUsage::default();
                checkpoint_at = event.mono_ns;
            }
            EventKind::AgentUsage => {
                if let Ok(AgentEvent::Usage(usage)) = serde_json::from_value(event.data) {
                    member.unfinished.usage.add(&usage);
                    member.unfinished.turns += 1; // reported with every response of the model
                }
            }
            EventKind::RunStop => {
                if let Ok(RunStopData { reason, agent }) = serde_json::from_value(event.data) {
                    (member.reason, member.agent) = (Some(reason), agent);
                }
            }
            _ => {}
        }
    }
    Ok((ReadRun { member, reports }, check))
}

fn open(directory: &Path, key: &HomeKey, run: &RunId) -> Result<EventReader, ReadError> {
    Ok(EventReader::open(directory)?.checked_with(key.for_run(run)))
}

fn broken_because(home: &Home, run: RunId, error: &LineageError) -> Broken {
    let gone = std::fs::symlink_metadata(home.run_dir(&run))
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if gone {
        return Broken::Gone { run };
    }
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    Broken::Unreadable { run, message }
}

/// `read` has the newest run first. Of a resumed run, only iterations up to the checkpoint count.
fn iterations(home: &Home, read: &[ReadRun]) -> Vec<LineIteration> {
    let mut found = BTreeMap::new();
    let mut up_to = u32::MAX;
    for ReadRun { member, reports } in read {
        for report in reports.iter().filter(|report| report.iteration <= up_to) {
            found.entry(report.iteration).or_insert_with(|| LineIteration {
                run: member.run,
                report: report.clone(),
                kept: has_checkpoint(home, &member.run, report.iteration),
            });
        }
        up_to = up_to.min(member.origin.as_ref().map_or(0, |origin| origin.iteration));
    }
    found.into_values().collect()
}

fn has_checkpoint(home: &Home, run: &RunId, iteration: u32) -> bool {
    let path = checkpoint::path(&home.run_dir(run), iteration);
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Runs that were resumed or forked from `run`. Records that cannot be read are ignored.
fn children(home: &Home, key: &HomeKey, run: &RunId) -> Result<Vec<Child>, LineageError> {
    let mut found = Vec::new();
    for other in store::run_directories(home).map_err(LineageError::Runs)? {
        if other == *run {
            continue;
        }
        let origin = resume_origin(home, key, &other).ok().flatten();
        let Some(ResumeOrigin { kind, from, continues, iteration, .. }) = origin else { continue };
        let parent = match kind {
            ResumeKind::Resume => continues,
            ResumeKind::Fork => from,
        };
        if parent == *run {
            found.push(Child { run: other, kind, iteration });
        }
    }
    Ok(found)
}

/// Reads only the first event.
pub(crate) fn resume_origin(
    home: &Home,
    key: &HomeKey,
    run: &RunId,
) -> Result<Option<ResumeOrigin>, ReadError> {
    let first = open(&home.run_dir(run), key, run)?.next()?;
    let start = first.filter(|event| event.kind == EventKind::RunStart);
    let start = start.and_then(|event| serde_json::from_value::<RunStartData>(event.data).ok());
    Ok(start.and_then(|start| start.resumed_from))
}
