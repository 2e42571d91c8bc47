//! Detects directories that git treats as repositories whatever their name is, or would with the changes applied: some
//! files in them execute.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use belljar_spec::autorun::{self, Autorun, Class, GIT_DIRECTORY, GitMarks};

use super::change::{Change, Kind};
use super::open::OpenTree;

const MAKES_ONE: Autorun = Autorun {
    class: Class::Control,
    why: "makes the directory a repository, whose config git obeys",
};

/// Each directory is looked at once: a run decides how many there are, and how deep.
pub(super) struct Repositories<'a> {
    tree: &'a OpenTree,
    /// By directory: what the run changed there, and has now.
    made: HashMap<PathBuf, GitMarks>,
    marks: HashMap<PathBuf, GitMarks>,
    /// What everything below a directory does later.
    below: HashMap<PathBuf, Option<Autorun>>,
}

impl<'a> Repositories<'a> {
    pub(super) fn among(tree: &'a OpenTree, changes: &[Change]) -> Self {
        let mut made: HashMap<PathBuf, GitMarks> = HashMap::new();
        for change in changes.iter().filter(|change| change.after.is_some()) {
            let path = change.path.as_path();
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            if GitMarks::NAMES.iter().any(|known| autorun::is(name, known)) {
                made.entry(parent.to_owned()).or_default().note(name);
            }
        }
        Self { tree, made, marks: HashMap::new(), below: HashMap::new() }
    }

    pub(super) fn later(&mut self, change: &Change) -> Option<Autorun> {
        let path = change.path.as_path();
        let (parent, name) = (path.parent()?, path.file_name()?);
        let was_file = change.before.as_ref().is_some_and(|facts| facts.kind == Kind::File);
        let comes = change.after.is_some() && !was_file;
        if autorun::is(name, "HEAD") && comes && self.marks_of(parent).wants_head() {
            return Some(MAKES_ONE);
        }
        let is_known = GIT_DIRECTORY.iter().any(|entry| autorun::is(name, entry.name));
        let here = is_known.then(|| self.marks_of(parent).classify(Path::new(name))).flatten();
        here.or_else(|| self.all_below(parent).filter(|_| !autorun::is_sample_hook(path)))
    }

    /// Before or after: whichever of the two git is going to see.
    fn marks_of(&mut self, directory: &Path) -> GitMarks {
        if let Some(marks) = self.marks.get(directory) {
            return *marks;
        }
        let mut marks = self.made.get(directory).copied().unwrap_or_default();
        for name in GitMarks::NAMES {
            if self.tree.lower().stat(directory.join(name)).is_ok() {
                marks.note(name.as_ref());
            }
        }
        self.marks.insert(directory.to_owned(), marks);
        marks
    }

    fn all_below(&mut self, directory: &Path) -> Option<Autorun> {
        // From the nearest that is known, downwards.
        let unknown: Vec<&Path> =
            directory.ancestors().take_while(|above| !self.below.contains_key(*above)).collect();
        for directory in unknown.into_iter().rev() {
            let (parent, name) = (directory.parent(), directory.file_name());
            let above = parent.and_then(|parent| self.below.get(parent).copied().flatten());
            let later = above.or_else(|| {
                let (parent, name) = (parent?, name?);
                let holds =
                    |entry: &autorun::GitEntry| entry.is_directory && autorun::is(name, entry.name);
                GIT_DIRECTORY
                    .iter()
                    .any(holds)
                    .then(|| self.marks_of(parent))?
                    .classify(Path::new(name))
            });
            self.below.insert(directory.to_owned(), later);
        }
        self.below.get(directory).copied().flatten()
    }
}
