//! Decides about one change, if the real tree may have changed since the run saw it.

use belljar_spec::OsText;
use belljar_tree::Metadata;
use serde::Serialize;

use super::ApplyError;
use super::draft::{OnConflict, Part, Take, Todo, Was};
use crate::baseline::{Baseline, MAX_TEXT, Seen};
use crate::change::{Change, Facts, Kind, What};
use crate::fingerprint::Fingerprint;
use crate::merge::{self, Clash, Merged};
use crate::open::{OpenTree, read_small};

/// A path that both the run and another process changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub path: OsText,
    pub what: Clashing,
    /// Of texts: the lines.
    pub clashes: Vec<Clash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clashing {
    BothModified,
    BothCreated,
    /// The run changed it, and here it was removed.
    RemovedHere,
    /// The run removed it, and here it was changed or made.
    RemovedByTheRun,
    /// It became something of another kind.
    Kind,
    BothChangedMode,
}

impl Clashing {
    pub fn words(self) -> &'static str {
        match self {
            Self::BothModified => "changed here and by the run",
            Self::BothCreated => "made here and by the run",
            Self::RemovedHere => "changed by the run, removed here",
            Self::RemovedByTheRun => "removed by the run, changed here",
            Self::Kind => "replaced by the run, changed here",
            Self::BothChangedMode => "its mode was changed here and by the run",
        }
    }
}

pub(super) enum Decision {
    Do(Box<Todo>),
    /// What is there is right as it is.
    Stays,
    Conflict(Conflict),
}

pub(super) fn decide(
    tree: &OpenTree,
    change: &Change,
    baseline: &Baseline,
    on_conflict: OnConflict,
) -> Result<Decision, ApplyError> {
    let look = |path: &OsText| {
        tree.lower()
            .stat_if_exists(path.as_path())
            .map_err(|error| ApplyError::Look { path: path.clone(), error: error.errno().into() })
    };
    let now = look(&change.path)?;
    let from = match &change.what {
        What::Renamed { from } => Some((from, look(from)?)),
        _ => None,
    };
    let case = Case { tree, change, baseline, seen: baseline.seen(&change.path), now };
    let clash = match &from {
        // The old name is looked at like a removal.
        Some((from, now)) => match removal_clashes(tree, baseline, from, now.as_ref())? {
            true => Outcome::Clash(Clashing::RemovedByTheRun, Vec::new()),
            false => case.outcome()?,
        },
        None => case.outcome()?,
    };
    let (take, mode, merged) = match clash {
        Outcome::Take { take, mode, merged } => (take, mode, merged),
        Outcome::Stays => return Ok(Decision::Stays),
        Outcome::Clash(what, clashes) => match on_conflict {
            OnConflict::Refuse => {
                let path = change.path.clone();
                return Ok(Decision::Conflict(Conflict { path, what, clashes }));
            }
            OnConflict::TakeTheRuns => (case.the_runs()?, case.its_mode(), false),
        },
    };
    let was = case.now.as_ref().map(Was::of);
    let from = from.and_then(|(_, now)| now.as_ref().map(Was::of));
    if take == Take::Nothing && was.is_none() && from.is_none() {
        return Ok(Decision::Stays); // gone already
    }
    Ok(Decision::Do(Box::new(Todo { change: change.clone(), take, mode, was, from, merged })))
}

enum Outcome {
    Take { take: Take, mode: u32, merged: bool },
    Stays,
    Clash(Clashing, Vec<Clash>),
}

struct Case<'a> {
    tree: &'a OpenTree,
    change: &'a Change,
    baseline: &'a Baseline,
    seen: &'a Seen,
    now: Option<Metadata>,
}

impl Case<'_> {
    fn its_mode(&self) -> u32 {
        self.change.after.as_ref().map_or(0, |after| after.mode & 0o777)
    }

    fn run(&self) -> Result<Outcome, ApplyError> {
        Ok(Outcome::Take { take: self.the_runs()?, mode: self.its_mode(), merged: false })
    }

    /// What the run made of it, pinned to the state in which it is now.
    fn the_runs(&self) -> Result<Take, ApplyError> {
        let Some(after) = &self.change.after else { return Ok(Take::Nothing) };
        match (after.kind, &self.change.what) {
            (_, What::Mode) => Ok(Take::Mode),
            (Kind::Directory, _) => Ok(Take::Directory),
            (Kind::Link, _) => Ok(Take::Link { target: after.target.clone().unwrap_or_default() }),
            (Kind::File, _) => {
                let file = self.tree.open_after(self.change)?;
                let stat = Metadata::of(&file).map_err(|errno| ApplyError::Look {
                    path: self.change.path.clone(),
                    error: errno.into(),
                })?;
                Ok(Take::File { source: Fingerprint::of(&stat) })
            }
            (Kind::Fifo | Kind::Socket | Kind::Device, _) => {
                Err(ApplyError::Special { path: self.change.path.clone() })
            }
        }
    }

    fn outcome(&self) -> Result<Outcome, ApplyError> {
        let moved_on = self.seen.has_moved_on(self.now.as_ref());
        match &self.change.what {
            What::Mode => self.mode(),
            _ if !moved_on => self.run(),
            What::Created | What::Renamed { .. } => Ok(match (&self.now, self.seen) {
                (None, _) => Outcome::Clash(Clashing::RemovedHere, Vec::new()),
                (Some(_), _) => Outcome::Clash(Clashing::BothCreated, Vec::new()),
            }),
            What::Deleted => {
                let now = self.now.as_ref();
                match removal_clashes(self.tree, self.baseline, &self.change.path, now)? {
                    true => Ok(Outcome::Clash(Clashing::RemovedByTheRun, Vec::new())),
                    false => self.run(),
                }
            }
            What::Replaced => {
                let now = self.now.as_ref();
                match removal_clashes(self.tree, self.baseline, &self.change.path, now)? {
                    true => Ok(Outcome::Clash(Clashing::Kind, Vec::new())),
                    false => self.run(),
                }
            }
            What::Modified => self.three_way(),
        }
    }

    /// The mode alone: the side that changed it wins.
    fn mode(&self) -> Result<Outcome, ApplyError> {
        let now = self.now.as_ref().map_or(0, |now| now.mode() & 0o777);
        let run = Outcome::Take { take: Take::Mode, mode: self.its_mode(), merged: false };
        Ok(match self.seen {
            Seen::There { mode, .. } => match three_modes(*mode, now, self.its_mode()) {
                Some(mode) if mode == now => Outcome::Stays,
                Some(_) => run,
                None => Outcome::Clash(Clashing::BothChangedMode, Vec::new()),
            },
            Seen::Unknown | Seen::Absent => match self.seen.has_moved_on(self.now.as_ref()) {
                true => Outcome::Clash(Clashing::BothChangedMode, Vec::new()),
                false => run,
            },
        })
    }

    fn three_way(&self) -> Result<Outcome, ApplyError> {
        let clash = |what| Ok(Outcome::Clash(what, Vec::new()));
        let (Some(before), Some(after)) = (&self.change.before, &self.change.after) else {
            return clash(Clashing::Kind);
        };
        match self.seen {
            Seen::Absent => clash(Clashing::BothCreated),
            Seen::There { kind: Kind::Link, target, .. } if after.kind == Kind::Link => {
                self.three_targets(target, before, after)
            }
            Seen::There { kind: Kind::File, mode, copy: Some(copy), .. }
                if after.kind == Kind::File =>
            {
                let texts = [
                    self.baseline.text(copy),
                    small_text(self.tree.open_before(&self.change.path).ok()),
                    small_text(self.tree.open_after(self.change).ok()),
                ];
                let [Some(base), Some(ours), Some(theirs)] = texts else {
                    return clash(Clashing::BothModified);
                };
                let Some(mode) = three_modes(*mode, before.mode, self.its_mode()) else {
                    return clash(Clashing::BothChangedMode);
                };
                match merge::merge(&base, &ours, &theirs) {
                    Merged::Conflict(clashes) => {
                        Ok(Outcome::Clash(Clashing::BothModified, clashes))
                    }
                    Merged::Clean(text) if text == ours && mode == before.mode => {
                        Ok(Outcome::Stays)
                    }
                    Merged::Clean(text) if text == theirs => self.run(),
                    Merged::Clean(text) => {
                        let take = Take::Text { text, part: Part::Merged { theirs } };
                        Ok(Outcome::Take { take, mode, merged: true })
                    }
                }
            }
            Seen::There { .. } | Seen::Unknown => clash(Clashing::BothModified),
        }
    }

    fn three_targets(
        &self,
        base: &Option<OsText>,
        before: &Facts,
        after: &Facts,
    ) -> Result<Outcome, ApplyError> {
        if after.target == *base {
            return Ok(Outcome::Stays);
        }
        if before.target == *base {
            return self.run();
        }
        Ok(Outcome::Clash(Clashing::BothModified, Vec::new()))
    }
}

/// `None`: both changed it, each in its own way.
fn three_modes(base: u32, ours: u32, theirs: u32) -> Option<u32> {
    match (ours == base, theirs == base) {
        (true, _) => Some(theirs),
        (_, true) => Some(ours),
        _ => (ours == theirs).then_some(ours),
    }
}

/// Whether the run removed something that others changed.
fn removal_clashes(
    tree: &OpenTree,
    baseline: &Baseline,
    path: &OsText,
    now: Option<&Metadata>,
) -> Result<bool, ApplyError> {
    let seen = baseline.seen(path);
    if now.is_none() || !seen.has_moved_on(now) {
        return Ok(false);
    }
    // Touched, and still the same text.
    let ours = small_text(tree.open_before(path).ok());
    let base = seen.copy().and_then(|copy| baseline.text(copy));
    Ok(base.is_none() || base != ours)
}

fn small_text(file: Option<std::fs::File>) -> Option<Vec<u8>> {
    let text = read_small(&mut file?, MAX_TEXT).ok()??;
    merge::is_text(&text).then_some(text)
}
