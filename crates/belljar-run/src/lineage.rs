//! The line of runs that one run continues: resumed runs are records of their own, and only together they tell
//! what an agent did.
//!
//! Every line that is read must be one that its run wrote. A record that is gone, or that is not the one which its
//! successor knew, ends the line, and the line says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use belljar_spec::{
    AgentNews, AgentReport, EventKind, IterationReport, ResumeKind, ResumeOrigin, RunId,
    StopReason, Tally, TokenUsage, counted,
};
use serde::{Deserialize, Serialize};

use belljar_record::home::Home;
use belljar_record::store::{self, Life, life};
use belljar_record::{EventReader, HomeKey, KeyError, ReadError};
use belljar_workspace::checkpoint;

/// Longer lines are nobody's.
const MOST_RUNS: usize = 10_000;

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
    #[error("the record of run {run} does not begin as one does; belljar verify {run} tells more")]
    NoStart { run: RunId },
    #[error("cannot list the runs of the home")]
    Runs(#[source] std::io::Error),
}

/// What one run and those before it did.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// The oldest first; the run that was asked for is the last.
    pub runs: Vec<Member>,
    /// Of the whole line, each number once, in order.
    pub iterations: Vec<LineIteration>,
    /// Why the line does not go back to its beginning.
    pub broken: Option<Broken>,
    /// Runs that begin with a checkpoint of this one, the oldest first.
    pub children: Vec<Child>,
}

/// One run of the line.
#[derive(Clone, Debug)]
pub struct Member {
    pub run: RunId,
    /// `None`: it began at the beginning.
    pub birth: Option<ResumeOrigin>,
    /// The last hash of its log, as far as it is written.
    pub head: String,
    /// The iteration that was begun last, whether it came to its end or not.
    pub begun: Option<u32>,
    /// What was used after its last checkpoint, in an iteration that came to no end.
    pub unfinished: Unfinished,
    /// `None` while it lives, and where nobody wrote its end yet.
    pub reason: Option<StopReason>,
    /// What came of its agent, told at its end.
    pub agent: Option<AgentReport>,
    pub life: Life,
}

/// What no checkpoint has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    pub usage: TokenUsage,
    pub turns: u64,
    pub elapsed_ms: u64,
}

/// An iteration that came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineIteration {
    /// The run that it was in.
    pub run: RunId,
    #[serde(flatten)]
    pub report: IterationReport,
    /// Whether one can go back to it: what it left is still there.
    pub kept: bool,
}

/// Why a line ends before its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Broken {
    /// The record was removed.
    Gone { run: RunId },
    /// It is not the record that its successor begins with.
    Changed { run: RunId },
    /// It cannot be read.
    Unreadable { run: RunId, message: String },
    /// A run that comes before itself, or a line without end.
    Endless { run: RunId },
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone { run } => write!(f, "the record of run {run} is gone"),
            Self::Changed { run } => {
                write!(f, "run {run} is not recorded as it was when this line left it")
            }
            Self::Unreadable { run, message } => write!(f, "run {run}: {message}"),
            Self::Endless { run } => write!(f, "run {run} comes before itself"),
        }
    }
}

/// A run that was born from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    pub run: RunId,
    pub how: ResumeKind,
    /// The iteration of its parent that it begins after.
    pub iteration: u32,
}

impl Lineage {
    /// The run that was asked for.
    pub fn last(&self) -> Option<&Member> {
        self.runs.last()
    }

    /// Iterations that one can go back to, the newest first.
    pub fn checkpoints(&self) -> impl Iterator<Item = &LineIteration> {
        self.iterations.iter().rev().filter(|one| one.kept)
    }

    pub fn iteration(&self, number: u32) -> Option<&LineIteration> {
        self.iterations.iter().find(|one| one.report.iteration == number)
    }

    /// What was used so far, finished or not; also known where the records before are gone.
    pub fn tally(&self) -> Tally {
        let Some(last) = self.last() else { return Tally::default() };
        let own = self.iterations.iter().rev().find(|one| one.run == last.run);
        let inherited = || last.birth.as_ref().map(|birth| birth.tally.clone());
        let kept = own.map(|own| own.report.tally.clone()).or_else(inherited);
        let mut tally = kept.unwrap_or_default();
        let Unfinished { usage, turns, elapsed_ms } = &last.unfinished;
        tally.usage.add(usage);
        tally.turns = counted(tally.turns, *turns);
        tally.elapsed_ms = tally.elapsed_ms.saturating_add(*elapsed_ms);
        tally
    }
}

/// Reads the line of `run` back to where it began: at the beginning, or as a fork, which counts anew.
pub fn lineage(home: &Home, run: &RunId) -> Result<Lineage, LineageError> {
    let key = HomeKey::load(home.path())?;
    let mut seen = BTreeSet::from([*run]);
    let mut read = vec![read_one(home, &key, run, None)?.0];
    let mut broken = None;
    while let Some(birth) = continues(&read) {
        let before = birth.from;
        if !seen.insert(before) || read.len() >= MOST_RUNS {
            broken = Some(Broken::Endless { run: before });
            break;
        }
        match read_one(home, &key, &before, Some(&birth.head)) {
            Ok((one, Tie::Holds)) => read.push(one),
            Ok((_, Tie::Differs)) => {
                broken = Some(Broken::Changed { run: before });
                break;
            }
            Err(error) => {
                broken = Some(why(home, before, &error));
                break;
            }
        }
    }
    let iterations = iterations(home, &read);
    let children = children(home, &key, run)?;
    let runs = read.into_iter().rev().map(|one| one.member).collect();
    Ok(Lineage { runs, iterations, broken, children })
}

struct ReadOne {
    member: Member,
    reports: Vec<IterationReport>,
}

/// Whether a record is the one that its successor knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tie {
    Holds,
    Differs,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    birth: Option<ResumeOrigin>,
}

#[derive(Deserialize)]
struct Stop {
    reason: StopReason,
    #[serde(default)]
    agent: Option<AgentReport>,
}

#[derive(Deserialize)]
struct Begun {
    iteration: u32,
}

/// The birth of the oldest run so far, if that continues another.
fn continues(read: &[ReadOne]) -> Option<ResumeOrigin> {
    let birth = read.last()?.member.birth.as_ref()?;
    (birth.how == ResumeKind::Resume).then(|| birth.clone())
}

/// `known` is a hash that must be in it.
fn read_one(
    home: &Home,
    key: &HomeKey,
    run: &RunId,
    known: Option<&str>,
) -> Result<(ReadOne, Tie), LineageError> {
    let record = |error| LineageError::Record { run: *run, error };
    let life = life::of(home, run); // before the log: what ends meanwhile is read as ended
    let mut events = open(&home.run_dir(run), key, run).map_err(record)?;
    let first = events.next().map_err(record)?;
    let start = first.filter(|event| event.kind == EventKind::RunStart);
    let start = start.ok_or(LineageError::NoStart { run: *run })?;
    let Start { birth } =
        serde_json::from_value(start.data).map_err(|_| LineageError::NoStart { run: *run })?;
    let (begun, reason, agent) = (None, None, None);
    let unfinished = Unfinished::default();
    let mut kept_at = start.mono_ns;
    let mut member =
        Member { run: *run, birth, head: start.hash, begun, unfinished, reason, agent, life };
    let is_known = |hash: &str| known.is_none_or(|known| known == hash);
    let mut tie = if is_known(&member.head) { Tie::Holds } else { Tie::Differs };
    let mut reports = Vec::new();
    while let Some(event) = events.next().map_err(record)? {
        if tie == Tie::Differs && is_known(&event.hash) {
            tie = Tie::Holds;
        }
        member.head = event.hash;
        // Of the same clock: one run does not outlive its machine.
        member.unfinished.elapsed_ms = event.mono_ns.saturating_sub(kept_at) / 1_000_000;
        match event.kind {
            EventKind::IterationStart => {
                let begun: Option<Begun> = serde_json::from_value(event.data).ok();
                member.begun = begun.map(|begun| begun.iteration).or(member.begun);
            }
            EventKind::Checkpoint => {
                reports.extend(serde_json::from_value::<IterationReport>(event.data).ok());
                member.unfinished = Unfinished::default();
                kept_at = event.mono_ns;
            }
            EventKind::AgentUsage => {
                if let Ok(AgentNews::Usage(usage)) = serde_json::from_value(event.data) {
                    member.unfinished.usage.add(&usage);
                    member.unfinished.turns += 1; // a format tells it with every answer of the model
                }
            }
            EventKind::RunStop => {
                if let Ok(Stop { reason, agent }) = serde_json::from_value(event.data) {
                    (member.reason, member.agent) = (Some(reason), agent);
                }
            }
            _ => {}
        }
    }
    Ok((ReadOne { member, reports }, tie))
}

fn open(directory: &Path, key: &HomeKey, run: &RunId) -> Result<EventReader, ReadError> {
    Ok(EventReader::open(directory)?.checked_with(key.for_run(run)))
}

fn why(home: &Home, run: RunId, error: &LineageError) -> Broken {
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

/// `read` has the newest run first. Of a run that another continues, only what came before that counts.
fn iterations(home: &Home, read: &[ReadOne]) -> Vec<LineIteration> {
    let mut found = BTreeMap::new();
    let mut up_to = u32::MAX;
    for ReadOne { member, reports } in read {
        for report in reports.iter().filter(|report| report.iteration <= up_to) {
            found.entry(report.iteration).or_insert_with(|| LineIteration {
                run: member.run,
                report: report.clone(),
                kept: is_kept(home, &member.run, report.iteration),
            });
        }
        up_to = up_to.min(member.birth.as_ref().map_or(0, |birth| birth.iteration));
    }
    found.into_values().collect()
}

fn is_kept(home: &Home, run: &RunId, iteration: u32) -> bool {
    let path = checkpoint::path(&home.run_dir(run), iteration);
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whoever names `run` as the one it comes from. Records that cannot be read are nobody's children.
fn children(home: &Home, key: &HomeKey, run: &RunId) -> Result<Vec<Child>, LineageError> {
    let mut found = Vec::new();
    for other in store::run_directories(home).map_err(LineageError::Runs)? {
        if other == *run {
            continue;
        }
        let birth = birth(home, key, &other).ok().flatten();
        let Some(ResumeOrigin { how, from, continues, iteration, .. }) = birth else { continue };
        let parent = match how {
            ResumeKind::Resume => continues,
            ResumeKind::Fork => from,
        };
        if parent == *run {
            found.push(Child { run: other, how, iteration });
        }
    }
    Ok(found)
}

/// The first event alone has it.
pub(crate) fn birth(
    home: &Home,
    key: &HomeKey,
    run: &RunId,
) -> Result<Option<ResumeOrigin>, ReadError> {
    let first = open(&home.run_dir(run), key, run)?.next()?;
    let start = first.filter(|event| event.kind == EventKind::RunStart);
    let start = start.and_then(|event| serde_json::from_value::<Start>(event.data).ok());
    Ok(start.and_then(|start| start.birth))
}
