//! Removes old runs on request.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use belljar_record::store::{Life, ListError, RunInfo, Which, list};

use super::{RemoveError, UnreviewedChanges, remove};
use belljar_record::home::Home;
use belljar_workspace::is_unreviewed;

/// Which stopped runs are removed: those that both rules select. A rule that is not set selects every run.
#[derive(Clone, Copy, Debug)]
pub struct PruneRules {
    /// Keep this many of the newest runs of each name; runs without a name are one group.
    pub keep: Option<usize>,
    /// Keep runs that stopped more recently.
    pub older_than: Option<Duration>,
    pub now: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneMode {
    /// Only report.
    DryRun,
    Remove,
}

/// A run that the rules select.
#[derive(Debug)]
pub struct Pruned {
    pub run: RunInfo,
    pub removal: Removal,
}

#[derive(Debug)]
pub enum Removal {
    WouldRemove,
    Removed,
    /// Not removed: its changes were neither applied nor discarded.
    Unreviewed,
    Failed(RemoveError),
}

/// Oldest first. A run that cannot be removed does not stop the others.
pub fn prune(home: &Home, rules: PruneRules, mode: PruneMode) -> Result<Vec<Pruned>, ListError> {
    let runs = list(home, Which::All)?;
    let mut old = selected(runs, rules);
    old.reverse();
    let pruned = old.into_iter().map(|run| {
        let removal = match mode {
            PruneMode::DryRun if is_unreviewed(home, &run.id) => Removal::Unreviewed,
            PruneMode::DryRun => Removal::WouldRemove,
            PruneMode::Remove => match remove::remove_run(home, &run.id, UnreviewedChanges::Keep) {
                Ok(()) => Removal::Removed,
                Err(RemoveError::Unreviewed { .. }) => Removal::Unreviewed,
                Err(error) => Removal::Failed(error),
            },
        };
        Pruned { run, removal }
    });
    Ok(pruned.collect())
}

/// `runs` come newest first, and so does what is returned.
fn selected(runs: Vec<RunInfo>, rules: PruneRules) -> Vec<RunInfo> {
    let mut newer_of_name: HashMap<Option<String>, usize> = HashMap::new();
    let stopped = runs.into_iter().filter(|run| run.life == Life::Over);
    let is_selected = |run: &RunInfo| {
        let newer = newer_of_name.entry(run.name.clone()).or_default();
        *newer += 1;
        let too_many = rules.keep.is_none_or(|keep| *newer > keep);
        let too_old = rules.older_than.is_none_or(|span| age(run, rules.now) > span);
        too_many && too_old
    };
    stopped.filter(is_selected).collect()
}

/// Since the run stopped; zero for a time in the future.
fn age(run: &RunInfo, now: SystemTime) -> Duration {
    let since = Duration::from_millis(run.stopped_ms.unwrap_or(run.created_ms));
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(since)
}
