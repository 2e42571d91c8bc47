//! Recognises git directories by their contents, as git does, whatever they are called.

use std::ffi::OsStr;
use std::path::Path;

use super::list::GIT_DIRECTORY;
use super::{Autorun, Class, is, is_sample, names_of};

/// Names in a directory that identify it as git's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GitMarks {
    pub head: bool,
    pub objects: bool,
    pub refs: bool,
    pub commondir: bool,
    pub config: bool,
    pub hooks: bool,
}

impl GitMarks {
    /// Everything that is noted.
    pub const NAMES: &[&str] = &["HEAD", "objects", "refs", "commondir", "config", "hooks"];

    pub fn of<'a>(names: impl IntoIterator<Item = &'a OsStr>) -> Self {
        let mut marks = Self::default();
        names.into_iter().for_each(|name| marks.note(name));
        marks
    }

    pub fn note(&mut self, name: &OsStr) {
        let marks = [
            &mut self.head,
            &mut self.objects,
            &mut self.refs,
            &mut self.commondir,
            &mut self.config,
            &mut self.hooks,
        ];
        for (mark, known) in marks.into_iter().zip(Self::NAMES) {
            *mark |= is(name, known);
        }
    }

    /// Also one without `refs`, which may be made afterwards. Not by `refs` alone: git's logs have a `HEAD` beside it.
    pub fn is_git_directory(self) -> bool {
        self.head && (self.objects || self.commondir)
    }

    /// Whether a new `HEAD` beside these would make git obey what is here.
    pub fn wants_head(self) -> bool {
        self.objects || self.commondir || self.config || self.hooks
    }

    /// When a path in such a directory would execute on the host, if only a part of the directory exists yet: a file
    /// that is applied today must not become active with a file that is applied tomorrow.
    pub fn classify(self, inside: &Path) -> Option<Autorun> {
        let names = names_of(inside);
        let first = names.first()?;
        let entry = GIT_DIRECTORY.iter().find(|entry| is(first, entry.name))?;
        let is_part = self.head || self.objects || self.refs;
        let counts = match entry.name {
            "commondir" | "gitdir" | "config.worktree" => true,
            "config" => is_part,
            "hooks" => is_part || self.config,
            _ => self.is_git_directory(),
        };
        let counts = counts && (entry.is_directory || names.len() == 1) && !is_sample(&names);
        counts.then_some(Autorun { class: Class::Control, why: entry.why })
    }
}
