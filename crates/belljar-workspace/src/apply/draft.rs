//! Decides path by path what `apply` would do. Nothing is changed yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use belljar_spec::{OsText, RunId};
use belljar_tree::Metadata;

use super::conflict::{Conflict, Decision, decide};
use super::fault;
use super::journal::ApplyLock;
use super::recover::recover;
use super::step::Old;
use super::{ApplyError, Recovery};
use crate::baseline::{Baseline, MAX_TEXT};
use crate::change::{Change, Changes, HowFar, Kind, What, Withheld};
use crate::fingerprint::{Fingerprint, Identity};
use crate::merge;
use crate::open::{OpenTree, Review, read_small};
use crate::select::Selection;
use belljar_record::home::Home;
use belljar_record::store::{Life, life};

/// What to do where both the run and another process changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    Refuse,
    TakeTheRuns,
}

/// One tree, and what would become of it.
#[derive(Debug)]
pub struct TreeDraft {
    pub tree: OpenTree,
    /// By path.
    pub todo: Vec<Todo>,
    pub conflicts: Vec<Conflict>,
    /// Left out, each with its reason.
    pub withheld: Vec<Change>,
    /// The version in the real tree stays: the run did not change it, or did the same.
    pub stays: Vec<OsText>,
    /// Changes that were not selected.
    pub not_selected: usize,
    /// How many there were to do, before some were taken out of the list.
    proposed: usize,
}

#[derive(Debug)]
pub struct Draft {
    pub run: RunId,
    /// Before anything was looked at.
    pub(super) made_of: Life,
    pub trees: Vec<TreeDraft>,
    /// What had to be finished first.
    pub recovery: Recovery,
}

/// One change that would be made.
#[derive(Debug)]
pub struct Todo {
    pub change: Change,
    pub(super) take: Take,
    /// The nine bits.
    pub(super) mode: u32,
    /// What is there now.
    pub(super) was: Option<Was>,
    /// Of a rename: what is there under the old name.
    pub(super) from: Option<Was>,
    /// Both versions are in it.
    pub merged: bool,
}

/// Something in the real tree, as it was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Was {
    pub(super) old: Old,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
}

impl Was {
    pub(super) fn of(found: &Metadata) -> Self {
        let old = match found.is_dir() {
            true => Old::Directory { seen: Identity::of(found) },
            false => Old::Content { seen: Fingerprint::of(found) },
        };
        Self { old, mode: found.mode(), owner: (found.uid(), found.gid()) }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.old, Old::Directory { .. })
    }
}

/// Where the new content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// A file of the run, in that state.
    File {
        source: Fingerprint,
    },
    /// Put together from several versions, or chosen by hand.
    Text {
        text: Vec<u8>,
        part: Part,
    },
    Link {
        target: OsText,
    },
    Directory,
    /// It goes.
    Nothing,
    /// Its content stays.
    Mode,
}

/// How much of what the run did to a text is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything, and what others did as well. The run's own version is this.
    Merged { theirs: Vec<u8> },
    /// What was chosen by hand. What was not is still a change of the run's.
    Chosen,
    /// The same, and what others did is in it too.
    ChosenOfMerged,
}

impl Draft {
    /// `select` gives what is wanted of each tree.
    pub fn make(
        home: &Home,
        run: &RunId,
        select: impl Fn(&OpenTree) -> Selection,
        on_conflict: OnConflict,
    ) -> Result<Self, ApplyError> {
        let recovery = {
            let lock = ApplyLock::take(home)
                .map_err(|error| ApplyError::Lock { path: home.applying(), error })?;
            recover(home, run, &lock)?
        };
        let made_of = life::of(home, run);
        let review = Review::open(home, run)?;
        let mut trees = Vec::new();
        for tree in review.trees {
            let changes = tree.changes()?;
            let selection = select(&tree);
            // Of what was named, all has to be in the list: what is a directory there may have more in it.
            if changes.cut && !selection.is_all_files_of(&changes) {
                return Err(ApplyError::TooMany { tree: tree.note.source.clone() });
            }
            let mut baseline = Baseline::open(&home.run_dir(run), tree.note.number)?;
            baseline.capture(&tree, &changes)?;
            fault::point();
            trees.push(TreeDraft::make(tree, changes, &baseline, &selection, on_conflict)?);
        }
        Ok(Self { run: *run, made_of, trees, recovery })
    }

    pub fn has_conflicts(&self) -> bool {
        self.trees.iter().any(|tree| !tree.conflicts.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.trees.iter().all(|tree| tree.todo.is_empty())
    }
}

impl TreeDraft {
    fn make(
        tree: OpenTree,
        changes: Changes,
        baseline: &Baseline,
        selection: &Selection,
        on_conflict: OnConflict,
    ) -> Result<Self, ApplyError> {
        let mut draft = Self {
            tree,
            todo: Vec::new(),
            conflicts: Vec::new(),
            withheld: Vec::new(),
            stays: Vec::new(),
            not_selected: 0,
            proposed: 0,
        };
        for change in draft.chosen(changes.changes, selection) {
            match decide(&draft.tree, &change, baseline, on_conflict)? {
                Decision::Do(todo) => draft.todo.push(*todo),
                Decision::Stays => draft.stays.push(change.path),
                // Every look of git's at a tree writes it anew, and git can make it again.
                Decision::Conflict(_) if draft.tree.is_git_index(&change.path) => {
                    draft.stays.push(change.path);
                }
                Decision::Conflict(conflict) => draft.conflicts.push(conflict),
            }
        }
        draft.proposed = draft.todo.len();
        Ok(draft)
    }

    /// The changes that are asked for and not held back, with the new directories that they need.
    fn chosen(&mut self, changes: Vec<Change>, selection: &Selection) -> Vec<Change> {
        let is_new_directory = |change: &Change| {
            matches!(change.what, What::Created)
                && change.after.as_ref().is_some_and(|after| after.kind == Kind::Directory)
        };
        let directories: BTreeMap<PathBuf, Option<Withheld>> = changes
            .iter()
            .filter(|change| is_new_directory(change))
            .map(|change| (change.path.as_path().to_owned(), change.withheld.clone()))
            .collect();
        let never = |held: &Option<Withheld>| {
            held.as_ref().is_some_and(|held| held.how_far == HowFar::Always)
        };
        let mut needed = BTreeSet::new();
        let mut verdicts = Vec::new();
        for change in &changes {
            let from = match &change.what {
                What::Renamed { from } => Some(from),
                _ => None,
            };
            let either =
                |test: &dyn Fn(&OsText) -> bool| test(&change.path) || from.is_some_and(test);
            let selected = either(&|path| selection.contains(path));
            let passes = match &change.withheld {
                None => true,
                Some(held) => {
                    let above = held.because_of.as_ref();
                    held.how_far == HowFar::UnlessNamed
                        && (either(&|path| selection.names(path))
                            || above.is_some_and(|above| selection.names(above)))
                }
            };
            let above = || change.path.as_path().ancestors().skip(1);
            let blocked =
                above().find(|path| directories.get(*path).is_some_and(never)).map(PathBuf::from);
            let verdict = match (selected, passes, blocked) {
                (false, ..) => Verdict::NotSelected,
                (true, true, None) => {
                    needed.extend(
                        above().filter(|path| directories.contains_key(*path)).map(PathBuf::from),
                    );
                    Verdict::Chosen
                }
                (true, true, Some(_)) => Verdict::Blocked,
                (true, false, _) => Verdict::Withheld,
            };
            verdicts.push(verdict);
        }
        let mut chosen = Vec::new();
        for (mut change, verdict) in changes.into_iter().zip(verdicts) {
            let is_needed = is_new_directory(&change) && needed.contains(change.path.as_path());
            match verdict {
                Verdict::Chosen => chosen.push(change),
                Verdict::NotSelected | Verdict::Withheld if is_needed => chosen.push(change),
                Verdict::NotSelected => self.not_selected += 1,
                Verdict::Withheld => self.withheld.push(change),
                Verdict::Blocked => {
                    let why = "the directory it is in is held back".to_owned();
                    change.withheld = Some(Withheld::new(why, HowFar::Always));
                    self.withheld.push(change);
                }
            }
        }
        chosen
    }

    /// Nothing was taken out of the list, nor out of a file.
    pub(super) fn all_was_chosen(&self) -> bool {
        let in_part = |todo: &Todo| {
            matches!(&todo.take, Take::Text { part: Part::Chosen | Part::ChosenOfMerged, .. })
        };
        self.todo.len() == self.proposed && !self.todo.iter().any(in_part)
    }

    /// The text that is there and the one that would be, of a file that is changed and no more.
    pub fn texts(&self, todo: &Todo) -> Option<(Vec<u8>, Vec<u8>)> {
        let is_file = |facts: &Option<crate::Facts>| {
            facts.as_ref().is_some_and(|facts| facts.kind == Kind::File)
        };
        if todo.change.what != What::Modified
            || !is_file(&todo.change.before)
            || !is_file(&todo.change.after)
        {
            return None;
        }
        let mut now = self.tree.open_before(&todo.change.path).ok()?;
        let now = read_small(&mut now, MAX_TEXT).ok()??;
        let new = match &todo.take {
            Take::Text { text, .. } => text.clone(),
            Take::File { .. } => {
                let mut file = self.tree.open_after(&todo.change).ok()?;
                read_small(&mut file, MAX_TEXT).ok()??
            }
            Take::Link { .. } | Take::Directory | Take::Nothing | Take::Mode => return None,
        };
        (merge::is_text(&now) && merge::is_text(&new)).then_some((now, new))
    }
}

enum Verdict {
    NotSelected,
    Chosen,
    Withheld,
    Blocked,
}

impl Todo {
    /// A part of what the run did to a text.
    pub fn take_text(&mut self, text: Vec<u8>) {
        let part = match self.merged {
            true => Part::ChosenOfMerged,
            false => Part::Chosen,
        };
        self.take = Take::Text { text, part };
    }
}
