//! Removing old runs on request.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use belljar_record::store::{Life, ListError, RunInfo, Which, list};

use super::{RemoveError, Undecided, remove};
use belljar_record::home::Home;
use belljar_workspace::is_unreviewed;

/// Which stopped runs go: those that both rules are against. A rule that is not given is against
/// every run.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// So many of the newest of each name stay; runs without a name are one group.
    pub keep: Option<usize>,
    /// What stopped less long ago stays.
    pub older_than: Option<Duration>,
    pub now: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only tells.
    DryRun,
    Do,
}

/// One run that the rules are against.
#[derive(Debug)]
pub struct Pruned {
    pub run: RunInfo,
    pub removal: Removal,
}

#[derive(Debug)]
pub enum Removal {
    WouldBeDone,
    Done,
    /// It has changes that were neither applied nor discarded, and stays.
    Unreviewed,
    Failed(RemoveError),
}

/// Oldest first. One that cannot be removed does not stop the others.
pub fn prune(home: &Home, rules: Rules, mode: Mode) -> Result<Vec<Pruned>, ListError> {
    let runs = list(home, Which::All)?;
    let mut old = beyond(runs, rules);
    old.reverse();
    let pruned = old.into_iter().map(|run| {
        let removal = match mode {
            Mode::DryRun if is_unreviewed(home, &run.id) => Removal::Unreviewed,
            Mode::DryRun => Removal::WouldBeDone,
            Mode::Do => match remove::whole(home, &run.id, Undecided::Stays) {
                Ok(()) => Removal::Done,
                Err(RemoveError::Unreviewed { .. }) => Removal::Unreviewed,
                Err(error) => Removal::Failed(error),
            },
        };
        Pruned { run, removal }
    });
    Ok(pruned.collect())
}

/// `runs` come newest first, and so does what is returned.
fn beyond(runs: Vec<RunInfo>, rules: Rules) -> Vec<RunInfo> {
    let mut newer_of_name: HashMap<Option<String>, usize> = HashMap::new();
    let stopped = runs.into_iter().filter(|run| run.life == Life::Over);
    let is_beyond = |run: &RunInfo| {
        let newer = newer_of_name.entry(run.name.clone()).or_default();
        *newer += 1;
        let too_many = rules.keep.is_none_or(|keep| *newer > keep);
        let too_old = rules.older_than.is_none_or(|span| age(run, rules.now) > span);
        too_many && too_old
    };
    stopped.filter(is_beyond).collect()
}

/// Since the run stopped; a time to come is no age.
fn age(run: &RunInfo, now: SystemTime) -> Duration {
    let since = Duration::from_millis(run.stopped_ms.unwrap_or(run.created_ms));
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(since)
}
