//! One change of the machine: how it is printed, made and undone.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::files::{self, EditLock, below};
use super::{SetupError, subordinate_ids};

/// Every file that is written here is for everybody to read.
const MODE: u32 = 0o644;

/// Paths are those of the machine, wherever its root is for this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum Change {
    /// A file of our own.
    File {
        path: PathBuf,
        content: String,
        /// An older one of ours, which is replaced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// A line of a file that others edit too.
    Ids { path: PathBuf, range: IdRange },
    /// A directory for the user, and those of the kernel's files in it that it may write to.
    Directory { path: PathBuf, uid: u32, gid: u32, files: Vec<String> },
    /// A value of the kernel.
    Setting {
        path: PathBuf,
        value: String,
        /// What it was, if it is to be so again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
    },
    /// A program that is run when the change is made.
    Run { command: Vec<String> },
    /// A program that is run when the change is undone.
    RunOnUndo { command: Vec<String> },
}

/// Subordinate ids of one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    pub user: String,
    pub first: u32,
    pub count: u32,
}

impl IdRange {
    pub(super) fn line(&self) -> String {
        format!("{}:{}:{}", self.user, self.first, self.count)
    }

    /// Of 64 bits: the last id can be the largest number.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        u64::from(self.first) < other.end() && u64::from(other.first) < self.end()
    }
}

impl Change {
    /// What makes it by hand; `None` for what is only done when it is undone.
    pub fn command(&self) -> Option<String> {
        Some(match self {
            Self::File { path, content, .. } => {
                format!("sudo tee {} >/dev/null <<'END'\n{content}END", path.display())
            }
            Self::Ids { path, range } => {
                format!("echo '{}' | sudo tee -a {}", range.line(), path.display())
            }
            Self::Directory { path, uid, gid, files } => {
                let path = path.display();
                let files: String = files.iter().map(|file| format!(" {path}/{file}")).collect();
                format!("sudo mkdir -p {path} && sudo chown {uid}:{gid} {path}{files}")
            }
            Self::Setting { path, value, .. } => {
                format!("echo '{value}' | sudo tee {}", path.display())
            }
            Self::Run { command } => format!("sudo {}", command.join(" ")),
            Self::RunOnUndo { .. } => return None,
        })
    }

    /// What was done.
    pub(super) fn describe(&self) -> Option<String> {
        Some(match self {
            Self::File { path, .. } => format!("wrote {}", path.display()),
            Self::Ids { path, range } => {
                let last = range.end().saturating_sub(1);
                format!("gave {} the ids {}-{last} in {}", range.user, range.first, path.display())
            }
            Self::Directory { path, .. } => format!("made {}", path.display()),
            Self::Setting { path, value, .. } => format!("set {} to {value}", path.display()),
            Self::Run { command } => format!("ran {}", command.join(" ")),
            Self::RunOnUndo { .. } => return None,
        })
    }

    /// The file or directory that it is about.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. }
            | Self::Ids { path, .. }
            | Self::Directory { path, .. }
            | Self::Setting { path, .. } => Some(path),
            Self::Run { .. } | Self::RunOnUndo { .. } => None,
        }
    }

    /// Whether it holds for every user of the machine.
    pub(super) fn is_machine_wide(&self) -> bool {
        match self {
            Self::File { .. }
            | Self::Setting { .. }
            | Self::Run { .. }
            | Self::RunOnUndo { .. } => true,
            Self::Ids { .. } | Self::Directory { .. } => false,
        }
    }

    pub(super) fn make(&self, root: &Path) -> Result<(), SetupError> {
        match self {
            Self::File { path, content, replaces } => {
                let path = below(root, path);
                match files::read(&path)? {
                    Some(found) if found == *content => Ok(()),
                    Some(found) if Some(&found) != replaces.as_ref() => {
                        Err(SetupError::Exists { path })
                    }
                    _ => files::replace(&path, content, MODE),
                }
            }
            Self::Ids { path, range } => add_ids(&below(root, path), range),
            Self::Directory { path, uid, gid, files } => {
                let path = below(root, path);
                let failed = |error| SetupError::Write { path: path.clone(), error };
                match fs::create_dir(&path) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(failed(error));
                    }
                    _ => {}
                }
                let present = files.iter().map(|file| path.join(file)).filter(|file| file.exists());
                for place in present.chain([path.clone()]) {
                    chown(&place, Some(*uid), Some(*gid)).map_err(failed)?;
                }
                Ok(())
            }
            Self::Setting { path, value, .. } => set(&below(root, path), value),
            Self::Run { command } => run(root, command),
            Self::RunOnUndo { .. } => Ok(()),
        }
    }

    /// Why it is not ours to undo any more.
    pub(super) fn changed(&self, root: &Path) -> Result<Option<String>, SetupError> {
        let changed = |what: &str| Ok(Some(format!("it was {what} after belljar made it")));
        match self {
            Self::File { path, content, .. } => match files::read(&below(root, path))? {
                Some(found) if found != *content => changed("edited"),
                _ => Ok(None),
            },
            Self::Directory { path, uid, .. } => match fs::metadata(below(root, path)) {
                Ok(found) if found.uid() != *uid => changed("given to somebody else"),
                _ => Ok(None),
            },
            Self::Ids { .. } | Self::Setting { .. } | Self::Run { .. } | Self::RunOnUndo { .. } => {
                Ok(None)
            }
        }
    }

    /// Whether there was something to undo.
    pub(super) fn undo(&self, root: &Path) -> Result<bool, SetupError> {
        let gone = |path: PathBuf, removed: io::Result<()>| match removed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(SetupError::Write { path, error }),
        };
        match self {
            Self::File { path, .. } => {
                let path = below(root, path);
                let removed = fs::remove_file(&path);
                gone(path, removed)
            }
            Self::Ids { path, range } => remove_ids(&below(root, path), range),
            Self::Directory { path, .. } => {
                let path = below(root, path);
                let removed = remove_groups(&path);
                gone(path, removed)
            }
            Self::Setting { path, value, before } => {
                let path = below(root, path);
                let now = files::read(&path)?.unwrap_or_default();
                match before {
                    Some(before) if now.trim() == value => set(&path, before).map(|()| true),
                    _ => Ok(false),
                }
            }
            Self::Run { .. } => Ok(false),
            Self::RunOnUndo { command } => run(root, command).map(|()| true),
        }
    }
}

/// Under the lock, so that no range is given twice.
fn add_ids(path: &Path, range: &IdRange) -> Result<(), SetupError> {
    let _lock = EditLock::take(path)?;
    let mut text = files::read(path)?.unwrap_or_default();
    if text.lines().any(|line| line == range.line()) {
        return Ok(());
    }
    if subordinate_ids::ranges(&text).any(|other| other.overlaps(range)) {
        return Err(SetupError::Taken { path: path.to_owned(), range: range.line() });
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&range.line());
    text.push('\n');
    files::replace(path, &text, MODE)
}

/// Exactly that line, once.
fn remove_ids(path: &Path, range: &IdRange) -> Result<bool, SetupError> {
    let _lock = EditLock::take(path)?;
    let Some(text) = files::read(path)? else { return Ok(false) };
    let line = format!("{}\n", range.line());
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Some(at) = lines.iter().rposition(|found| *found == line) else { return Ok(false) };
    lines.remove(at);
    files::replace(path, &lines.concat(), MODE)?;
    Ok(true)
}

/// A control group, and the empty ones in it: those of runs that were killed.
fn remove_groups(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_dir(entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Not replaced: the kernel's files are written to.
fn set(path: &Path, value: &str) -> Result<(), SetupError> {
    fs::write(path, value).map_err(|error| SetupError::Write { path: path.to_owned(), error })
}

/// Only on this machine itself: a program would not look below another root.
fn run(root: &Path, command: &[String]) -> Result<(), SetupError> {
    let (Some(program), true) = (command.first(), root == Path::new("/")) else { return Ok(()) };
    let done = Command::new(program)
        .args(&command[1..])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| SetupError::Start { program: program.clone(), error })?;
    if done.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&done.stderr).trim().chars().take(1000).collect();
    Err(SetupError::Command { command: command.join(" "), stderr })
}
