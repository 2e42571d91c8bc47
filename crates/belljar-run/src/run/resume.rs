//! Starts a run from a checkpoint of another one: `resume` and `fork`.
//!
//! The spec is the frozen one, from the log; nothing is read again that an agent could have written. What the run
//! stands on must still be the same: its mounts, its image, and what this build makes of the policy.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::{
    AgentTotals, EventKind, Hint, LoopSpec, Money, OsText, PlannedImage, ResumeKind, ResumeOrigin,
    RunId, RunSpec, SessionTotals, SourceIdentity, StopReason, Unchanged,
};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::Deserialize;

use super::resume_check::ResumeMismatch;
use crate::config::{ConfigError, SYSTEM_DIRECTORY, check_ceiling};
use crate::lineage::{Lineage, LineageError, lineage};
use crate::loop_policy::{Loop, LoopDecision};
use belljar_record::home::Home;
use belljar_record::redact::NOT_RECORDED;
use belljar_record::store::{Life, life};
use belljar_record::{EventReader, HomeKey, KeyError, ReadError};

/// Added to the budgets of the frozen spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extend {
    pub iterations: u32,
    pub time: Duration,
    pub cost: Money,
    pub turns: u64,
    pub tokens: u64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub kind: ResumeKind,
    pub run: RunId,
    /// The last one, where it is `None`. 0 is the beginning.
    pub from: Option<u32>,
    pub extend: Extend,
    pub allow: Vec<ResumeMismatch>,
    /// For the iterations to come; the frozen one, where it is `None`.
    pub prompt: Option<String>,
    /// A fork has its own; a resumed run keeps the name.
    pub name: Option<String>,
}

/// A run that can be started.
#[derive(Debug)]
pub struct Resumed {
    pub spec: RunSpec,
    pub resumed_from: ResumeOrigin,
    /// Held until the record says that the run was resumed, so that it is resumed once.
    pub lock: ResumeLock,
}

/// Held by the process that resumes a run.
#[derive(Debug)]
pub struct ResumeLock(#[allow(dead_code, reason = "closing it lets go")] OwnedFd);

/// What the record has about the first start.
#[derive(Clone, Debug, Deserialize)]
struct Frozen {
    spec: RunSpec,
    #[serde(default)]
    policy_hash: String,
    #[serde(default)]
    image: Option<PlannedImage>,
    #[serde(default)]
    sources: Vec<SourceIdentity>,
}

#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Lineage(#[from] LineageError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot read the record of run {run}")]
    Read {
        run: RunId,
        #[source]
        error: ReadError,
    },
    #[error(
        "run {run} has no agent, so it cannot be resumed; belljar fork starts from a checkpoint of it"
    )]
    NoAgent { run: RunId },
    #[error("no checkpoint of run {run} was taken; --from 0 starts with its first state")]
    NoneTaken { run: RunId },
    #[error(
        "the record of run {run} does not say how it was started; belljar verify {run} checks it"
    )]
    NoStart { run: RunId },
    #[error("run {run} is still running; belljar logs -f --agent {run} follows it")]
    Live { run: RunId },
    #[error("run {run} is being continued by run {by}, which is still running")]
    Continued { run: RunId, by: RunId },
    #[error("there is no checkpoint {wanted}; {there}")]
    NoCheckpoint { wanted: u32, there: String },
    #[error(
        "checkpoint {iteration} was removed; belljar show lists the ones that are kept (--from N)"
    )]
    NotKept { iteration: u32 },
    #[error(
        "the workspace of this run is rw, so its earlier states were not kept; leave --from out"
    )]
    NoWayBack,
    #[error(
        "the line of runs before run {run} is broken: {why}; belljar resume --from 0 begins anew"
    )]
    Broken { run: RunId, why: String },
    #[error("run {run} is being resumed by another command right now")]
    Locked { run: RunId },
    #[error("cannot lock {}", .path.display())]
    Lock {
        path: std::path::PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{flag}: the loop has no such limit, so there is nothing to extend")]
    NothingToExtend { flag: &'static str },
    #[error(
        "{what} held the value of a secret, so it is not in the record, and the run cannot be resumed"
    )]
    NotRecorded { what: &'static str },
    #[error("run {run} has no agent, so it has no prompt; leave --prompt and --prompt-file out")]
    NoPrompt { run: RunId },
    #[error(transparent)]
    Prompt(Box<belljar_spec::resolve::ResolveError>),
    #[error("the run exceeds what /etc/belljar/policy.toml allows now")]
    Ceiling(#[source] Box<ConfigError>),
    #[error("the loop is finished ({why}); {hint}")]
    Over { why: String, hint: Hint },
    #[error(
        "the value of the variable {name} is not in the record; set it in your environment for this command"
    )]
    NoValue { name: String },
}

/// Finds the checkpoint, and what has to be started from it. Starts nothing.
pub fn prepare_resume(
    home: &Home,
    ask: &Ask,
    env: &BTreeMap<OsString, OsString>,
) -> Result<Resumed, ResumeError> {
    let (line, lock) = tip(home, ask)?;
    let continues = line.last().map_or(ask.run, |member| member.run);
    let frozen = frozen(home, &continues)?;
    let Checkpoint { from, iteration, session, session_totals } = checkpoint(&line, ask, &frozen)?;
    let head = line.runs.iter().find(|member| member.run == from);
    let head = head.map(|member| member.head.clone()).unwrap_or_default();
    let mut spec = frozen.spec.clone();
    let mut changes: Vec<String> =
        ask.allow.iter().map(|what| format!("allowed: {}", what.name())).collect();
    if let Some(prompt) = &ask.prompt {
        replace_prompt(&mut spec, prompt, continues)?;
        changes.push("prompt".to_owned());
    }
    fill_in(&mut spec, env)?;
    let totals = match ask.kind {
        // What was spent is spent, also by iterations that are gone back behind. Streaks begin anew.
        ResumeKind::Resume => AgentTotals {
            iterations: iteration,
            failures_in_a_row: 0,
            unchanged_in_a_row: 0,
            ..line.totals()
        },
        ResumeKind::Fork => AgentTotals::default(),
    };
    match (spec.agent.as_deref_mut(), ask.kind) {
        (Some(work), _) => {
            changes.extend(extend(&mut work.repeat, ask.extend)?);
            let next = Loop::new(work, totals.clone()).next(Duration::ZERO);
            if let LoopDecision::Stop { reason, why } = next
                && work.repeat.max_iterations != Some(0)
            {
                return Err(ResumeError::Over { why, hint: hint(reason) });
            }
        }
        (None, ResumeKind::Resume) => return Err(ResumeError::NoAgent { run: continues }),
        (None, ResumeKind::Fork) if iteration == 0 && ask.from.is_none() => {
            return Err(ResumeError::NoneTaken { run: continues });
        }
        // A sandbox that was given commands one by one: the fork waits for others.
        (None, ResumeKind::Fork) => {}
    }
    if ask.kind == ResumeKind::Fork {
        spec.name.clone_from(&ask.name);
    }
    // What an administrator allows no more is not allowed because it once was.
    check_ceiling(Path::new(SYSTEM_DIRECTORY), &spec)
        .map_err(|error| ResumeError::Ceiling(Box::new(error)))?;
    let unchanged = frozen.unchanged(&ask.allow);
    let resumed_from = ResumeOrigin {
        kind: ask.kind,
        from,
        continues,
        iteration,
        head,
        totals,
        session,
        session_totals,
        changes,
        unchanged,
    };
    Ok(Resumed { spec, resumed_from, lock })
}

/// The newest run of the line, locked: who resumes a run that was resumed before means where that came to.
fn tip(home: &Home, ask: &Ask) -> Result<(Lineage, ResumeLock), ResumeError> {
    if ask.kind == ResumeKind::Fork {
        let line = lineage(home, &ask.run)?; // a live run has checkpoints too
        return Ok((line, lock(home, &ask.run, FlockOperation::NonBlockingLockShared)?));
    }
    let mut run = ask.run;
    loop {
        // Before the check: a process that held it has recorded by now that the run was resumed.
        let held = lock(home, &run, FlockOperation::NonBlockingLockExclusive)?;
        if is_live(home, &run) {
            return Err(match run == ask.run {
                true => ResumeError::Live { run },
                false => ResumeError::Continued { run: ask.run, by: run },
            });
        }
        // Its record does not grow any more.
        let line = lineage(home, &run)?;
        let mut children = line
            .children
            .iter()
            .filter(|child| child.kind == ResumeKind::Resume)
            .map(|child| child.run);
        if let Some(by) = children.clone().find(|child| is_live(home, child)) {
            return Err(ResumeError::Continued { run: ask.run, by });
        }
        match children.next_back() {
            Some(child) => run = child,
            None => return Ok((line, held)),
        }
    }
}

/// One whose supervisor was killed just now lets go of its liveness lock a moment later.
fn is_live(home: &Home, run: &RunId) -> bool {
    const LOCK_TIMEOUT: Duration = Duration::from_millis(1500);
    let until = Instant::now() + LOCK_TIMEOUT;
    while matches!(life::of(home, run), Life::Live(_)) {
        if Instant::now() >= until {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

fn lock(home: &Home, run: &RunId, how: FlockOperation) -> Result<ResumeLock, ResumeError> {
    let path = home.run_dir(run);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |error: Errno| ResumeError::Lock { path: path.clone(), error: error.into() };
    let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
    match flock(&directory, how) {
        Ok(()) => Ok(ResumeLock(directory)),
        Err(Errno::WOULDBLOCK) => Err(ResumeError::Locked { run: *run }),
        Err(error) => Err(failed(error)),
    }
}

fn frozen(home: &Home, run: &RunId) -> Result<Frozen, ResumeError> {
    let failed = |error| ResumeError::Read { run: *run, error };
    let key = HomeKey::load(home.path())?.for_run(run);
    let mut events = EventReader::open(&home.run_dir(run)).map_err(failed)?.checked_with(key);
    let first = events.next().map_err(failed)?;
    let start = first.filter(|event| event.kind == EventKind::RunStart);
    let frozen = start.and_then(|event| serde_json::from_value::<Frozen>(event.data).ok());
    frozen.ok_or(ResumeError::NoStart { run: *run })
}

/// What a new run begins with.
struct Checkpoint {
    from: RunId,
    iteration: u32,
    session: Option<String>,
    session_totals: SessionTotals,
}

fn checkpoint(line: &Lineage, ask: &Ask, frozen: &Frozen) -> Result<Checkpoint, ResumeError> {
    let last_number = line.iterations.last().map_or(0, |one| one.report.iteration);
    let wanted = ask.from.unwrap_or(last_number);
    let is_layered = frozen
        .spec
        .workspace
        .iter()
        .chain(&frozen.spec.mounts)
        .any(|mount| mount.mode == belljar_spec::MountMode::Overlay);
    let is_written = frozen
        .spec
        .workspace
        .as_ref()
        .is_some_and(|mount| mount.mode == belljar_spec::MountMode::Rw);
    if is_written && !is_layered && wanted != last_number {
        return Err(ResumeError::NoWayBack);
    }
    // Without the earlier records it is unknown where a run without a checkpoint had started.
    let begins_later = |resumed_from: &ResumeOrigin| {
        resumed_from.kind == ResumeKind::Resume && resumed_from.iteration > last_number
    };
    if let (Some(why), Some(last)) = (&line.broken, line.last())
        && last.origin.as_ref().is_some_and(begins_later)
        && ask.from != Some(0)
    {
        return Err(ResumeError::Broken { run: last.run, why: why.to_string() });
    }
    if wanted == 0 {
        let run = line.runs.first().map_or(ask.run, |member| member.run);
        return Ok(Checkpoint {
            from: run,
            iteration: 0,
            session: None,
            session_totals: SessionTotals::default(),
        });
    }
    let Some(one) = line.iteration(wanted) else {
        let kept: Vec<String> =
            line.checkpoints().map(|one| one.report.iteration.to_string()).collect();
        let there = match kept.as_slice() {
            [] => "no iteration of this run came to its end; --from 0 begins anew".to_owned(),
            numbers => format!("there are {}", numbers.join(", ")),
        };
        return Err(ResumeError::NoCheckpoint { wanted, there });
    };
    if !one.kept {
        return Err(ResumeError::NotKept { iteration: wanted });
    }
    let report = &one.report;
    if report.done == Some(true) && ask.kind == ResumeKind::Resume {
        let why = format!("the until condition was met after iteration {wanted}");
        return Err(ResumeError::Over { why, hint: hint(StopReason::Done) });
    }
    Ok(Checkpoint {
        from: one.run,
        iteration: wanted,
        session: report.session.clone(),
        session_totals: report.session_totals,
    })
}

impl Frozen {
    /// What must still be so.
    fn unchanged(&self, allow: &[ResumeMismatch]) -> Unchanged {
        let image = self.image.as_ref().map(|image| image.id.clone()).unwrap_or_default();
        Unchanged {
            policy_hash: (!allow.contains(&ResumeMismatch::Policy))
                .then(|| self.policy_hash.clone()),
            image: (!allow.contains(&ResumeMismatch::Image)).then_some(image),
            sources: match allow.contains(&ResumeMismatch::Mounts) {
                true => Vec::new(),
                false => self.sources.clone(),
            },
        }
    }
}

fn replace_prompt(spec: &mut RunSpec, prompt: &str, run: RunId) -> Result<(), ResumeError> {
    let work = spec.agent.as_deref_mut().ok_or(ResumeError::NoPrompt { run })?;
    belljar_spec::resolve::check_prompt(work.agent.kind, prompt)
        .map_err(|error| ResumeError::Prompt(Box::new(error)))?;
    work.agent.prompt = prompt.to_owned();
    Ok(())
}

/// Values that look secret were not recorded: who resumes has to have them.
fn fill_in(spec: &mut RunSpec, env: &BTreeMap<OsString, OsString>) -> Result<(), ResumeError> {
    for (name, value) in &mut spec.env {
        if value.as_bytes() == NOT_RECORDED.as_bytes() {
            let given = env.get(std::ffi::OsStr::new(name));
            let given = given.ok_or_else(|| ResumeError::NoValue { name: name.clone() })?;
            *value = OsText::from(given.as_os_str());
        }
    }
    let Some(work) = spec.agent.as_deref() else { return Ok(()) };
    let is_missing = |word: &OsText| word.as_bytes() == NOT_RECORDED.as_bytes();
    let what = if work.agent.prompt == NOT_RECORDED {
        "the prompt"
    } else if work.agent.program.iter().any(is_missing)
        || work.agent.args.iter().any(|word| word == NOT_RECORDED)
    {
        "the agent's command line"
    } else {
        return Ok(());
    };
    Err(ResumeError::NotRecorded { what })
}

/// What was added, for the record.
fn extend(spec: &mut LoopSpec, extend: Extend) -> Result<Vec<String>, ResumeError> {
    let Extend { iterations, time, cost, turns, tokens } = extend;
    let mut changes = Vec::new();
    let nothing = |flag| ResumeError::NothingToExtend { flag };
    if iterations > 0 {
        let most = spec.max_iterations.as_mut().ok_or(nothing("--extend-iterations"))?;
        *most = most.saturating_add(iterations);
        changes.push(format!("max_iterations: {most}"));
    }
    if !time.is_zero() {
        let most = spec.max_time.as_mut().ok_or(nothing("--extend-time"))?;
        *most = most.saturating_add(time);
        changes.push(format!("max_time: {} s", most.as_secs()));
    }
    if cost > Money::ZERO {
        let most = spec.max_cost.as_mut().ok_or(nothing("--extend-cost-usd"))?;
        *most = most.plus(cost);
        changes.push(format!("max_cost_usd: {most}"));
    }
    if turns > 0 {
        let most = spec.max_turns.as_mut().ok_or(nothing("--extend-turns"))?;
        *most = most.saturating_add(turns);
        changes.push(format!("max_turns: {most}"));
    }
    if tokens > 0 {
        let most = spec.max_tokens.as_mut().ok_or(nothing("--extend-tokens"))?;
        *most = most.saturating_add(tokens);
        changes.push(format!("max_tokens: {most}"));
    }
    Ok(changes)
}

fn hint(reason: StopReason) -> Hint {
    let flag = match reason {
        StopReason::MaxIterations => "--extend-iterations N",
        StopReason::MaxTime => "--extend-time SPAN",
        StopReason::MaxCost => "--extend-cost-usd AMOUNT",
        StopReason::MaxTurns => "--extend-turns N",
        StopReason::MaxTokens => "--extend-tokens N",
        _ => return Hint::OtherCheckpoint,
    };
    Hint::Extend { flag: flag.to_owned() }
}
