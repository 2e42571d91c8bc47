//! The list of changes that were made, in a file of root's: nothing else is undone.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Change, SetupError, files};

const FILE: &str = "/var/lib/belljar/setup.json";
const VERSION: u32 = 1;

#[derive(Debug, Default)]
pub struct Journal {
    entries: Vec<JournalEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalEntry {
    step: String,
    user: String,
    change: Change,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    v: u32,
    entries: Vec<JournalEntry>,
}

/// Which changes are undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo<'a> {
    All,
    /// What was made for this user alone. A change of the whole machine stays, whoever it was made for: others may rely
    /// on it, and setup records nothing for a user who needed nothing more.
    OnlyOf(&'a str),
}

/// Something that was not undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    pub what: String,
    pub why: String,
}

/// What an undo did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UndoReport {
    pub removed: Vec<String>,
    /// Paths of changes that hold for every user of the machine, and were not meant.
    pub kept: Vec<String>,
    pub left: Vec<Left>,
}

impl Journal {
    pub(super) fn read(root: &Path) -> Result<Self, SetupError> {
        let path = place(root);
        let Some(text) = files::read(&path)? else { return Ok(Self::default()) };
        let stored: Stored = serde_json::from_str(&text)
            .map_err(|error| SetupError::Journal { path: path.clone(), error })?;
        if stored.v != VERSION {
            let error = serde::de::Error::custom(format!("it has version {}", stored.v));
            return Err(SetupError::Journal { path, error });
        }
        Ok(Self { entries: stored.entries })
    }

    /// Of this machine.
    pub fn here() -> Result<Self, SetupError> {
        Self::read(Path::new("/"))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a file with this content was made by a step.
    pub(super) fn has_file(&self, path: &Path, content: &str) -> bool {
        self.entries.iter().any(|entry| match &entry.change {
            Change::File { path: made, content: written, .. } => made == path && written == content,
            _ => false,
        })
    }

    pub(super) fn add(
        &mut self,
        root: &Path,
        step: &str,
        user: &str,
        change: &Change,
    ) -> Result<(), SetupError> {
        let entry =
            JournalEntry { step: step.to_owned(), user: user.to_owned(), change: change.clone() };
        let is_older = |other: &JournalEntry| match (&other.change, change) {
            (Change::File { path: a, .. }, Change::File { path: b, .. }) => a == b,
            (other, change) => other == change,
        };
        self.entries.retain(|other| !is_older(other));
        self.entries.push(entry);
        self.write(root)
    }

    /// Undoes what was made on this machine, the last first.
    pub fn undo(undo: Undo<'_>) -> Result<UndoReport, SetupError> {
        Self::undo_at(Path::new("/"), undo)
    }

    pub(super) fn undo_at(root: &Path, undo: Undo<'_>) -> Result<UndoReport, SetupError> {
        let _lock = files::SetupLock::take(root)?;
        Self::read(root)?.undo_entries(root, undo)
    }

    fn undo_entries(&mut self, root: &Path, undo: Undo<'_>) -> Result<UndoReport, SetupError> {
        let mut report = UndoReport::default();
        let of_user = |entry: &&JournalEntry| match undo {
            Undo::All => true,
            Undo::OnlyOf(user) => entry.user == user,
        };
        let is_kept = |entry: &&JournalEntry| undo != Undo::All && entry.change.is_machine_wide();
        let of_user: Vec<&JournalEntry> = self.entries.iter().rev().filter(of_user).collect();
        let kept = of_user.iter().copied().filter(is_kept);
        let kept = kept.filter_map(|entry| entry.change.path());
        report.kept.extend(kept.map(|path| path.display().to_string()));
        let meant: Vec<JournalEntry> =
            of_user.into_iter().filter(|entry| !is_kept(entry)).cloned().collect();
        let changed = changed_steps(root, &meant, &mut report)?;
        for entry in meant {
            if changed.contains(&entry.step) {
                continue;
            }
            match entry.change.undo(root) {
                Ok(was_there) => {
                    if let (true, Some(path)) = (was_there, entry.change.path()) {
                        report.removed.push(path.display().to_string());
                    }
                    self.entries.retain(|other| *other != entry);
                }
                Err(error) => {
                    let what = entry.change.path().map(|path| path.display().to_string());
                    let what = what.unwrap_or_else(|| entry.step.clone());
                    report.left.push(Left { what, why: belljar_spec::text::error_chain(&error) });
                }
            }
            self.write(root)?;
        }
        Ok(report)
    }

    /// A list without entries is no file.
    fn write(&self, root: &Path) -> Result<(), SetupError> {
        let path = place(root);
        if self.entries.is_empty() {
            let gone = std::fs::remove_file(&path);
            let directory = path.parent().map(std::fs::remove_dir);
            drop(directory); // one that holds something else stays
            return match gone {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(SetupError::Write { path, error })
                }
                _ => Ok(()),
            };
        }
        let stored = Stored { v: VERSION, entries: self.entries.clone() };
        let text = serde_json::to_string_pretty(&stored)
            .map_err(|error| SetupError::Journal { path: path.clone(), error })?;
        files::replace(&path, &format!("{text}\n"), 0o644)
    }
}

/// A step of which a file was changed by somebody is left as a whole, and named.
fn changed_steps(
    root: &Path,
    entries: &[JournalEntry],
    report: &mut UndoReport,
) -> Result<Vec<String>, SetupError> {
    let mut changed = Vec::new();
    for JournalEntry { step, change, .. } in entries {
        if let (Some(why), Some(path)) = (change.changed(root)?, change.path()) {
            report.left.push(Left { what: path.display().to_string(), why });
            changed.push(step.clone());
        }
    }
    Ok(changed)
}

fn place(root: &Path) -> PathBuf {
    files::below(root, Path::new(FILE))
}
