//! Turns a draft into steps, and stages everything that they need.
//!
//! The order is: directories are opened up where their mode forbids it; what goes, goes, from the deepest; what is
//! new or changed comes; modes come last. A new directory comes with all that is in it, in one step.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{Dir, Metadata};
use rustix::io::Errno;

use super::ApplyError;
use super::draft::{Part, Take, Todo, TreeDraft, Was};
use super::journal::RebaseTo;
use super::judge;
use super::stage::{Owner, Stage, StageError, numbered};
use super::staged::{Staged, StagedContent};
use super::step::{Old, Step};
use crate::baseline::Baseline;
use crate::change::What;
use crate::fingerprint::{Fingerprint, Identity};

#[derive(Default)]
pub(super) struct Built {
    pub(super) steps: Vec<Step>,
    pub(super) rebase: Vec<(OsText, RebaseTo)>,
    /// By the number under which it waits.
    pub(super) staged: HashMap<u32, Vec<Staged>>,
    /// Directories that the run removed and that hold something else by now.
    pub(super) not_empty: Vec<OsText>,
}

pub(super) struct Builder<'a> {
    draft: &'a TreeDraft,
    staging: &'a Dir,
    baseline: &'a mut Baseline,
    next: u32,
    built: Built,
    /// Directories whose mode has to be changed first, with what it is and becomes.
    opened_up: BTreeMap<PathBuf, (Identity, u32, u32)>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(draft: &'a TreeDraft, staging: &'a Dir, baseline: &'a mut Baseline) -> Self {
        let built = Built::default();
        Self { draft, staging, baseline, next: 0, built, opened_up: BTreeMap::new() }
    }

    pub(super) fn build(mut self) -> Result<Built, ApplyError> {
        let removals = self.removals()?;
        let (arrivals, late_modes) = self.arrivals()?;
        let modes = self.modes(late_modes);
        let mut steps = Vec::new();
        for (path, (of, old, new)) in &self.opened_up {
            let path = OsText::from(path.as_path());
            steps.push(Step::Mode { path, of: *of, old: *old, new: *new });
        }
        steps.extend(removals.into_iter().chain(arrivals).chain(modes));
        self.built.steps = steps;
        Ok(self.built)
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// What goes and has no successor at its path: the deepest first.
    fn removals(&mut self) -> Result<Vec<Step>, ApplyError> {
        let mut going: BTreeMap<PathBuf, Was> = BTreeMap::new();
        for todo in &self.draft.todo {
            match (&todo.change.what, todo.was, todo.from) {
                (What::Renamed { from }, _, Some(was)) => {
                    going.insert(from.as_path().to_owned(), was);
                }
                (What::Deleted, Some(was), _) => {
                    going.insert(todo.change.path.as_path().to_owned(), was);
                }
                _ => {}
            }
        }
        let mut steps = Vec::new();
        let mut gone: BTreeSet<PathBuf> = BTreeSet::new();
        for (path, was) in going.iter().rev() {
            let text = OsText::from(path.as_path());
            if was.is_directory() && !self.will_be_empty(path, &gone)? {
                self.built.not_empty.push(text);
                continue;
            }
            if was.is_directory() {
                self.open_up_self(path, was);
            }
            self.open_up_parent(path)?;
            gone.insert(path.clone());
            let staged = self.number();
            self.built.rebase.push((text.clone(), RebaseTo::Tree { new: None }));
            steps.push(Step::Remove { path: text, staged, old: was.old });
        }
        // A directory that becomes something else has to be empty by then, too.
        for todo in &self.draft.todo {
            let Some(was) = todo.was.filter(Was::is_directory) else { continue };
            let path = todo.change.path.as_path();
            let is_replaced = !matches!(todo.take, Take::Mode | Take::Nothing | Take::Directory);
            if is_replaced && !self.will_be_empty(path, &gone)? {
                return Err(ApplyError::NotEmpty { path: todo.change.path.clone() });
            }
            if is_replaced {
                self.open_up_self(path, &was);
            }
        }
        Ok(steps)
    }

    fn will_be_empty(&self, path: &Path, gone: &BTreeSet<PathBuf>) -> Result<bool, ApplyError> {
        let is_empty = || {
            for entry in self.draft.tree.lower().entries(path)? {
                if !gone.contains(&path.join(entry?.name)) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        is_empty().map_err(look_failed(&OsText::from(path)))
    }

    /// What comes. Modes that only fit afterwards are separate.
    fn arrivals(&mut self) -> Result<(Vec<Step>, Vec<Step>), ApplyError> {
        let draft = self.draft;
        let mut steps = Vec::new();
        let mut late = Vec::new();
        let mut at = 0;
        while let Some(todo) = draft.todo.get(at) {
            at += 1;
            if matches!(todo.take, Take::Nothing | Take::Mode) {
                continue;
            }
            // Sorted by path: all that is below follows at once.
            let below = match todo.take {
                Take::Directory => {
                    let root = todo.change.path.as_path();
                    let rest = draft.todo[at..].iter();
                    let is_below = |todo: &&Todo| todo.change.path.as_path().starts_with(root);
                    let count = rest.take_while(is_below).count();
                    let below = &draft.todo[at..at + count];
                    at += count;
                    below
                }
                _ => &[],
            };
            self.open_up_parent(todo.change.path.as_path())?;
            let staged = self.number();
            let (new, mode) = self.stage(todo, below, staged)?;
            let path = todo.change.path.clone();
            if let Some(mode) = mode {
                late.push(Step::Mode {
                    path: path.clone(),
                    of: new.identity,
                    old: mode.0,
                    new: mode.1,
                });
            }
            steps.push(match todo.was {
                Some(was) => Step::Replace { path, staged, old: was.old, new },
                None => Step::Create { path, staged, new },
            });
        }
        Ok((steps, late))
    }

    /// The staged entry, and its present and final mode where they differ.
    fn stage(
        &mut self,
        todo: &Todo,
        below: &[Todo],
        staged: u32,
    ) -> Result<(Fingerprint, Option<(u32, u32)>), ApplyError> {
        let owner = self.owner(todo)?;
        let stage = Stage { root: self.staging, owner };
        let name = numbered(staged);
        let mut entries = Vec::new();
        let (new, content) = self.stage_one(&stage, todo, &name)?;
        let Take::Directory = todo.take else {
            entries.push(Staged { path: PathBuf::new(), print: new, content });
            self.built.staged.insert(staged, entries);
            return Ok((new, None));
        };
        let root = todo.change.path.as_path();
        let mut directories = Vec::new();
        for todo in below {
            // Below a new directory nothing can go or change.
            let Ok(relative) = todo.change.path.as_path().strip_prefix(root) else { continue };
            let path = name.join(relative);
            let (print, content) = self.stage_one(&stage, todo, &path)?;
            match todo.take {
                Take::Directory => directories.push((path, todo, relative.to_owned())),
                _ => entries.push(Staged { path: relative.to_owned(), print, content }),
            }
        }
        for (path, todo, relative) in directories.into_iter().rev() {
            let new = stage
                .finish_directory(&path, todo.mode)
                .map_err(|error| stage_failed(&todo.change.path, error))?;
            self.note(todo, new);
            entries.push(Staged { path: relative, print: new, content: StagedContent::Directory });
        }
        // To be moved, a directory has to be writable by the process that moves it.
        let present = if is_root() { todo.mode } else { todo.mode | 0o700 };
        let new = stage
            .finish_directory(&name, present)
            .map_err(|error| stage_failed(&todo.change.path, error))?;
        self.note(todo, new);
        let top = Staged { path: PathBuf::new(), print: new, content: StagedContent::Directory };
        entries.push(top);
        self.built.staged.insert(staged, entries);
        Ok((new, (present != todo.mode).then_some((present, todo.mode))))
    }

    fn stage_one(
        &mut self,
        stage: &Stage<'_>,
        todo: &Todo,
        path: &Path,
    ) -> Result<(Fingerprint, StagedContent), ApplyError> {
        let failed = |error| stage_failed(&todo.change.path, error);
        let (new, content) = match &todo.take {
            Take::File { source } => {
                let from = self.draft.tree.open_after(&todo.change)?;
                match judge::config_of(self.draft, todo, from)? {
                    // What was judged, and not what it may be by now.
                    judge::Source::Judged(text) => {
                        let new = stage.text(path, &text, todo.mode).map_err(failed)?;
                        (new, StagedContent::of_text(&text))
                    }
                    judge::Source::Any(from) => {
                        stage.file(path, &from, source, todo.mode).map_err(failed)?
                    }
                }
            }
            Take::Text { text, .. } => {
                judge::text(self.draft, todo, text)?;
                let new = stage.text(path, text, todo.mode).map_err(failed)?;
                (new, StagedContent::of_text(text))
            }
            Take::Link { target } => {
                let new = stage.link(path, target).map_err(failed)?;
                (new, StagedContent::Target(target.clone()))
            }
            Take::Directory => {
                stage.directory(path).map_err(failed)?;
                let made = stage.root.stat(path);
                let made = made.map_err(|error| failed(StageError::from(error.errno())))?;
                return Ok((Fingerprint::of(&made), StagedContent::Directory));
            }
            Take::Nothing | Take::Mode => {
                return Err(ApplyError::NotEmpty { path: todo.change.path.clone() });
            }
        };
        self.note(todo, new);
        Ok((new, content))
    }

    /// What the next version of the path is to be compared with.
    fn note(&mut self, todo: &Todo, new: Fingerprint) {
        let to = match &todo.take {
            Take::Text { part: Part::ChosenOfMerged, .. } => return,
            Take::Text { part: Part::Chosen, .. } => RebaseTo::Part { new },
            Take::Text { part: Part::Merged { theirs }, .. } => match self.baseline.keep(theirs) {
                Some(copy) => RebaseTo::Kept { copy, mode: todo.mode },
                None => return,
            },
            _ => RebaseTo::Tree { new: Some(new) },
        };
        self.built.rebase.push((todo.change.path.clone(), to));
    }

    /// Modes of what stays, and of directories that were opened up; from the deepest.
    fn modes(&mut self, late: Vec<Step>) -> Vec<Step> {
        let mut back = self.opened_up.clone();
        let mut steps = BTreeMap::new();
        for step in late {
            steps.insert(step.path().as_path().to_owned(), step);
        }
        for todo in &self.draft.todo {
            let (Take::Mode, Some(was)) = (&todo.take, todo.was) else { continue };
            let path = todo.change.path.as_path();
            let opened = back.remove(path);
            let present = opened.map_or(was.mode, |(_, _, opened)| opened);
            // Bits besides the nine were there before, and mean no harm on a directory.
            let kept = if was.is_directory() { was.mode & 0o7000 } else { 0 };
            let of = identity(&was.old);
            let new = kept | todo.mode & 0o777;
            let text = todo.change.path.clone();
            if present != new {
                steps.insert(
                    path.to_owned(),
                    Step::Mode { path: text.clone(), of, old: present, new },
                );
            }
            let new = match was.old {
                Old::Content { seen } => Some(seen),
                Old::Directory { .. } => None, // a directory is taken down whatever is in it
            };
            self.built.rebase.push((text, RebaseTo::Tree { new }));
        }
        let gone: BTreeSet<&OsText> = self
            .built
            .rebase
            .iter()
            .filter(|(_, to)| matches!(to, RebaseTo::Tree { new: None }))
            .map(|(path, _)| path)
            .collect();
        // What has become something else, or has gone, needs none.
        let replaced = |path: &Path| {
            let mut todo = self.draft.todo.iter();
            todo.any(|todo| todo.change.path.as_path() == path && todo.take != Take::Mode)
        };
        for (path, (of, old, opened)) in back {
            let text = OsText::from(path.as_path());
            if !gone.contains(&text) && !replaced(&path) {
                steps.insert(path, Step::Mode { path: text, of, old: opened, new: old });
            }
        }
        steps.into_values().rev().collect()
    }

    fn owner(&self, todo: &Todo) -> Result<Owner, ApplyError> {
        if !is_root() {
            return Ok(Owner::Oneself);
        }
        if let Some(was) = todo.was {
            return Ok(Owner::Of { uid: was.owner.0, gid: was.owner.1 });
        }
        let failed = look_failed(&todo.change.path);
        let parent = todo.change.path.as_path().parent().unwrap_or(Path::new(""));
        let found = self.draft.tree.lower().stat(parent).map_err(|error| failed(error.errno()))?;
        Ok(Owner::Of { uid: found.uid(), gid: found.gid() })
    }

    /// A directory that does not let its owner change it is opened up for the while.
    fn open_up_parent(&mut self, path: &Path) -> Result<(), ApplyError> {
        if is_root() {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        let text = OsText::from(parent.as_path());
        let found = self.draft.tree.lower().stat_if_exists(&parent).map_err(Errno::from);
        if let Some(found) = found.map_err(look_failed(&text))?.filter(Metadata::is_dir) {
            self.open_up_self(&parent, &Was::of(&found));
        }
        Ok(())
    }

    fn open_up_self(&mut self, path: &Path, was: &Was) {
        if !is_root() && was.mode & 0o700 != 0o700 {
            let opened = (identity(&was.old), was.mode, was.mode | 0o700);
            self.opened_up.insert(path.to_owned(), opened);
        }
    }
}

fn look_failed(path: &OsText) -> impl Fn(Errno) -> ApplyError + use<> {
    let path = path.clone();
    move |errno| ApplyError::Look { path: path.clone(), error: errno.into() }
}

fn identity(old: &Old) -> Identity {
    match old {
        Old::Content { seen } => seen.identity,
        Old::Directory { seen } => *seen,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn stage_failed(path: &OsText, error: StageError) -> ApplyError {
    match error {
        StageError::Changed => ApplyError::ChangedByTheRun { path: path.clone() },
        StageError::Io(error) => ApplyError::Stage { path: path.clone(), error },
    }
}
