//! Records what the run saw of the real tree at the paths that it changed.
//!
//! Stored in `base/<number>/` of the run's directory, so that a change that another process made meanwhile is found, and
//! texts can be merged. A path is recorded once, and only while no process has changed it since the run began: what
//! came later is not what the run saw.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_spec::{Moment, OsText, RunId};
use belljar_tree::{Dir, EntryKind, FinalLink, Metadata};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::apply::journal::{Journal, RebaseTo};
use super::bounds::Listing;
use super::change::{Changes, Kind, What};
use super::fingerprint::{Fingerprint, Identity, changed};
use super::merge;
use super::open::{OpenTree, read_small};
use super::overlay_view::each;
use belljar_record::home::Home;
use belljar_record::store::{Life, life};

/// In the run's directory.
pub(crate) const BASE: &str = "base";
const INDEX: &str = "index.json";
/// A larger file is compared, and never merged.
pub(crate) const MAX_TEXT: u64 = 8 << 20;
/// Copies of all texts together.
const MAX_COPIED: u64 = 256 << 20;
/// Entries of the root that are looked at before any path is.
const MAX_TOP: usize = 10_000;

#[derive(Debug, thiserror::Error)]
#[error("cannot record what the run saw, in {}", .path.display())]
pub struct BaselineError {
    pub path: PathBuf,
    #[source]
    pub error: io::Error,
}

/// What the run saw at one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Seen {
    /// Another process had changed it before it could be recorded.
    Unknown,
    Absent,
    There {
        kind: Kind,
        mode: u32,
        /// `None`: the tree holds something else there, whatever that is.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        print: Option<Fingerprint>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        target: Option<OsText>,
        /// The file in `base/<number>/` with the text.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        copy: Option<String>,
    },
}

impl Seen {
    pub(crate) fn copy(&self) -> Option<&str> {
        match self {
            Self::There { copy, .. } => copy.as_deref(),
            Self::Unknown | Self::Absent => None,
        }
    }

    /// Whether the tree holds something else by now than what the run saw.
    pub(crate) fn has_moved_on(&self, now: Option<&Metadata>) -> bool {
        match (self, now) {
            (Self::Unknown | Self::Absent, None) => false,
            (Self::Unknown | Self::Absent, Some(_)) | (Self::There { .. }, None) => true,
            (Self::There { kind: Kind::Directory, .. }, Some(now)) => !now.is_dir(),
            (Self::There { print, .. }, Some(now)) => *print != Some(Fingerprint::of(now)),
        }
    }
}

/// Whether texts may have to be merged later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Texts {
    Copied,
    /// There is no next version to merge.
    Left,
}

/// The notes about one tree, under a lock.
#[derive(Debug)]
pub(crate) struct Baseline {
    directory: PathBuf,
    entries: BTreeMap<OsText, Seen>,
    copied: u64,
    next: u64,
    is_new: bool,
    /// Directories that are the very ones that the run saw.
    places: BTreeMap<OsText, Identity>,
    /// Whether a directory is in its place, in this look.
    in_place: HashMap<PathBuf, bool>,
    _lock: OwnedFd,
}

/// An [`Index`], as it is written: nothing of it is there twice.
#[derive(Serialize)]
struct Written<'a> {
    entries: Vec<(&'a OsText, &'a Seen)>,
    copied: u64,
    next: u64,
    places: Vec<(&'a OsText, &'a Identity)>,
}

#[derive(Default, Deserialize)]
struct Index {
    entries: Vec<(OsText, Seen)>,
    copied: u64,
    next: u64,
    #[serde(default)]
    places: Vec<(OsText, Identity)>,
}

impl Baseline {
    /// In the run's directory. Waits for other processes that have it open.
    pub(crate) fn open(run: &Path, number: u32) -> Result<Self, BaselineError> {
        let directory = run.join(BASE).join(number.to_string());
        let failed = |error| BaselineError { path: directory.clone(), error };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed)?;
        let lock = Dir::open(&directory, FinalLink::Follow)
            .map_err(Errno::from)
            .and_then(|lock| {
                rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
                Ok(OwnedFd::from(lock))
            })
            .map_err(|errno| failed(errno.into()))?;
        let index = match File::open(directory.join(INDEX)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Index::default(),
            file => serde_json::from_reader(io::BufReader::new(file.map_err(failed)?))
                .map_err(|error| failed(error.into()))?,
        };
        Ok(Self {
            directory,
            entries: index.entries.into_iter().collect(),
            copied: index.copied,
            next: index.next,
            is_new: false,
            places: index.places.into_iter().collect(),
            in_place: HashMap::new(),
            _lock: lock,
        })
    }

    pub(crate) fn seen(&self, path: &OsText) -> &Seen {
        self.entries.get(path).unwrap_or(&Seen::Unknown)
    }

    /// The text that the run saw, where it is kept.
    pub(crate) fn text(&self, copy: &str) -> Option<Vec<u8>> {
        let mut file = File::open(self.directory.join(copy)).ok()?;
        read_small(&mut file, MAX_TEXT).ok()?
    }

    /// Takes down every path of these changes that is not yet known.
    pub(crate) fn capture(
        &mut self,
        tree: &OpenTree,
        changes: &Changes,
    ) -> Result<(), BaselineError> {
        let paths = changes.changes.iter().flat_map(|change| {
            let from = match &change.what {
                What::Renamed { from } => Some(from),
                What::Created | What::Modified | What::Mode | What::Replaced | What::Deleted => {
                    None
                }
            };
            [Some(&change.path), from].into_iter().flatten()
        });
        self.capture_paths(tree, paths);
        self.write()
    }

    pub(crate) fn capture_paths<'a>(
        &mut self,
        tree: &OpenTree,
        paths: impl Iterator<Item = &'a OsText>,
    ) {
        if self.places.is_empty() {
            self.note_top(tree);
        }
        for path in paths {
            if !self.entries.contains_key(path) {
                self.take(tree.lower(), path, Some(tree.note.since), Texts::Copied);
            }
        }
    }

    /// Whatever cannot be read is not known. `since`: what was touched then or later is not what the run saw.
    fn take(&mut self, root: &Dir, path: &OsText, since: Option<Moment>, texts: Texts) {
        let seen = match root.stat_if_exists(path.as_path()) {
            Ok(None) => Seen::Absent,
            Ok(Some(stat)) if since.is_some_and(|since| changed(&stat) >= since) => {
                match stat.is_dir() {
                    // A directory is touched by everything that is put into it.
                    true => directory(&stat),
                    false => Seen::Unknown,
                }
            }
            Ok(Some(stat))
                if since.is_some_and(|since| {
                    !stat.is_dir() && !self.is_in_place(root, path.as_path().parent(), since)
                }) =>
            {
                Seen::Unknown
            }
            Ok(Some(stat)) => self.there(root, path, &stat, texts).unwrap_or(Seen::Unknown),
            Err(_) => Seen::Unknown,
        };
        self.put(path, seen);
    }

    /// Whether a directory, and each above it, is the one that the run saw. What lies in one that was renamed is as
    /// old as it was. A rename touches both the directory and the one it is in.
    fn is_in_place(&mut self, root: &Dir, path: Option<&Path>, since: Moment) -> bool {
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return true };
        if let Some(known) = self.in_place.get(path) {
            return *known;
        }
        let above = path.parent().unwrap_or(Path::new(""));
        let is = self.is_in_place(root, Some(above), since) && {
            let stats = (root.stat(path).ok(), root.stat(above).ok().filter(Metadata::is_dir));
            let name = OsText::from(path);
            match (stats, self.places.get(&name)) {
                ((Some(stat), _), Some(place)) => *place == Identity::of(&stat),
                ((Some(stat), Some(above)), None) => {
                    let is = changed(&stat) < since || changed(&above) < since;
                    if is {
                        self.places.insert(name, Identity::of(&stat));
                        self.is_new = true;
                    }
                    is
                }
                _ => false,
            }
        };
        self.in_place.insert(path.to_owned(), is);
        is
    }

    /// Before anything is made in the root: later it could not be determined.
    fn note_top(&mut self, tree: &OpenTree) {
        let mut names = Vec::new();
        let _ = each(tree.lower(), Listing::of_names(MAX_TOP), |name, stat| {
            if stat.is_dir() {
                names.push(PathBuf::from(name));
            }
        });
        for name in names {
            self.is_in_place(tree.lower(), Some(&name), tree.note.since);
        }
    }

    fn there(
        &mut self,
        root: &Dir,
        path: &OsText,
        stat: &Metadata,
        texts: Texts,
    ) -> Result<Seen, Errno> {
        let print = Fingerprint::of(stat);
        let (kind, target, copy) = match stat.kind() {
            EntryKind::Directory => return Ok(directory(stat)),
            EntryKind::File => match texts {
                Texts::Copied => (Kind::File, None, self.copy_text(root, path, &print)),
                Texts::Left => (Kind::File, None, None),
            },
            EntryKind::Symlink => {
                let target = root.read_link(path.as_path())?;
                (Kind::Link, Some(OsText::from(target)), None)
            }
            EntryKind::Fifo => (Kind::Fifo, None, None),
            EntryKind::Socket => (Kind::Socket, None, None),
            EntryKind::CharacterDevice | EntryKind::BlockDevice | EntryKind::Unknown => {
                (Kind::Device, None, None)
            }
        };
        Ok(Seen::There { kind, mode: stat.mode() & 0o777, print: Some(print), target, copy })
    }

    /// The name of the copy, where it is a text and there is room for it.
    fn copy_text(&mut self, root: &Dir, path: &OsText, print: &Fingerprint) -> Option<String> {
        if print.size > MAX_TEXT || self.copied + print.size > MAX_COPIED {
            return None;
        }
        let mut file = root.open_file(path.as_path()).ok()?;
        let text = read_small(&mut file, MAX_TEXT).ok()??;
        let after = Fingerprint::of(&Metadata::of(&file).ok()?);
        if after != *print || !merge::is_text(&text) {
            return None;
        }
        self.keep(&text)
    }

    /// Under a name of its own. What no entry names goes with the run.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Option<String> {
        if self.copied + text.len() as u64 > MAX_COPIED {
            return None;
        }
        let name = self.next.to_string();
        self.next += 1;
        let path = self.directory.join(&name);
        let written = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text));
        self.is_new = true; // the number is used up
        written.ok()?;
        self.copied += text.len() as u64;
        Some(name)
    }

    /// What the tree holds, if that is still what was put there.
    fn take_as_applied(
        &mut self,
        root: &Dir,
        path: &OsText,
        new: &Option<Fingerprint>,
        texts: Texts,
    ) {
        let Ok(found) = root.stat_if_exists(path.as_path()) else { return };
        let as_applied = match (new, &found) {
            (None, None) => true,
            (_, Some(found)) if found.is_dir() => true,
            (Some(new), Some(found)) => new.is_same_content(&Fingerprint::of(found)),
            _ => false,
        };
        if as_applied {
            self.take(root, path, None, texts);
        }
    }

    fn put(&mut self, path: &OsText, seen: Seen) {
        // A copy that no entry names any more goes with the run.
        self.entries.insert(path.clone(), seen);
        self.is_new = true;
    }

    pub(crate) fn write(&mut self) -> Result<(), BaselineError> {
        if !std::mem::take(&mut self.is_new) {
            return Ok(());
        }
        let index = Written {
            entries: self.entries.iter().collect(),
            copied: self.copied,
            next: self.next,
            places: self.places.iter().collect(),
        };
        let draft = self.directory.join("index.draft");
        let written = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|file| {
                let mut file = io::BufWriter::new(file);
                serde_json::to_writer(&mut file, &index)?;
                file.flush()
            })
            .and_then(|()| std::fs::rename(&draft, self.directory.join(INDEX)));
        written.map_err(|error| BaselineError { path: self.directory.clone(), error })
    }
}

fn directory(stat: &Metadata) -> Seen {
    let mode = stat.mode() & 0o777;
    Seen::There { kind: Kind::Directory, mode, print: None, target: None, copy: None }
}

/// After the run's version was taken over: what the tree holds is what its next version is to be compared with.
/// Where that fails the old notes stay, and the next comparison finds a conflict too many.
pub(crate) fn rebase(home: &Home, journal: &Journal, number: u32, root: &Dir) {
    let Ok(mut baseline) = Baseline::open(&home.run_dir(&journal.run), number) else { return };
    // A run that is over has no next version, but for what was left out of a text.
    let texts = match life::of(home, &journal.run) {
        Life::Over => Texts::Left,
        Life::Live(_) | Life::Unfinished => Texts::Copied,
    };
    for rebase in &journal.rebase {
        if journal.trees.get(rebase.tree).is_none_or(|tree| tree.number != number) {
            continue;
        }
        match &rebase.to {
            RebaseTo::Tree { new } => baseline.take_as_applied(root, &rebase.path, new, texts),
            RebaseTo::Part { new } => {
                baseline.take_as_applied(root, &rebase.path, &Some(*new), Texts::Copied);
            }
            RebaseTo::Kept { copy, mode } => {
                let seen = Seen::There {
                    kind: Kind::File,
                    mode: *mode,
                    print: None,
                    target: None,
                    copy: Some(copy.clone()),
                };
                baseline.put(&rebase.path, seen);
            }
        }
    }
    let _ = baseline.write();
}

/// After everything was put back: what was moved there and back was not changed by others.
pub(crate) fn refresh(home: &Home, journal: &Journal, number: u32, root: &Dir) {
    let Ok(mut baseline) = Baseline::open(&home.run_dir(&journal.run), number) else { return };
    for step in &journal.steps {
        if journal.trees.get(step.tree).is_none_or(|tree| tree.number != number) {
            continue;
        }
        let path = step.step.path();
        let Ok(found) = root.stat(path.as_path()) else { continue };
        let found = Fingerprint::of(&found);
        if let Some(Seen::There { print: Some(print), .. }) = baseline.entries.get_mut(path)
            && print.is_same_content(&found)
            && step.step.expected(print)
        {
            *print = found;
            baseline.is_new = true;
        }
    }
    let _ = baseline.write();
}

/// Takes down what the run saw, as long as it is there to be seen.
pub(crate) fn capture(run: &Path, tree: &OpenTree, changes: &Changes) -> Result<(), BaselineError> {
    Baseline::open(run, tree.note.number)?.capture(tree, changes)
}

/// For commands that show the changes of a run, which may be live. If it fails, the next comparison only knows less.
pub fn keep_baseline(home: &Home, run: &RunId, tree: &OpenTree, changes: &Changes) {
    let _ = capture(&home.run_dir(run), tree, changes);
}
