//! The journal of an `apply`: what it is about to do, on disk before it does it.
//!
//! One file a run in `applying/` of the home: `<run>.journal` until everything is done, `<run>.committed` from then
//! until everything is tidied up. So its name alone decides whether to undo or to continue.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{OsText, RunId};
use belljar_tree::{Dir, FinalLink, OpenDirError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::fault;
use super::step::Step;
use crate::fingerprint::{Fingerprint, Identity};
use belljar_record::home::Home;

const VERSION: u32 = 1;
const OPEN: &str = "journal";
const COMMITTED: &str = "committed";
const DRAFT: &str = "draft";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    pub(crate) v: u32,
    pub(crate) run: RunId,
    pub(crate) trees: Vec<JournalTree>,
    /// In order. Empty until everything is staged.
    pub(crate) steps: Vec<JournalStep>,
    /// What the run's next version of a path is to be compared with, once this is done.
    pub(crate) rebase: Vec<Rebase>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalTree {
    pub(crate) number: u32,
    pub(crate) root: OsText,
    pub(crate) identity: Identity,
    /// The name of the staging directory.
    pub(crate) staging: String,
    /// The directory that it lies in; nothing where that is the root.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) staged_in: Option<OsText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalStep {
    /// An index into the journal's trees.
    pub(crate) tree: usize,
    pub(crate) step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rebase {
    pub(crate) tree: usize,
    pub(crate) path: OsText,
    pub(crate) to: RebaseTo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum RebaseTo {
    /// What the tree holds from then on; `None`: nothing.
    Tree { new: Option<Fingerprint> },
    /// The same, and the run's own version has more.
    Part { new: Fingerprint },
    /// The run's own version, kept under this name: the tree's differs from it.
    Kept { copy: String, mode: u32 },
}

/// How far an application had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Committed,
}

/// Held by the process that applies, discards or recovers. Goes with the descriptor.
#[derive(Debug)]
pub(crate) struct ApplyLock(#[allow(dead_code, reason = "held")] OwnedFd);

impl ApplyLock {
    /// Waits for others.
    pub(crate) fn take(home: &Home) -> io::Result<Self> {
        let file = home.open_apply_lock()?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Self(file))
    }

    /// `None`: another process holds it.
    pub(crate) fn try_take(home: &Home) -> io::Result<Option<Self>> {
        let file = home.open_apply_lock()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl JournalTree {
    /// Where its staging directory is.
    pub(crate) fn staging_path(&self) -> PathBuf {
        self.staged_in.as_ref().unwrap_or(&self.root).as_path().join(&self.staging)
    }

    /// The directory that holds the staging directory. `root` is the tree's, which may have moved.
    pub(crate) fn open_staged_in(&self, root: &Dir) -> Result<Dir, OpenDirError> {
        match &self.staged_in {
            None => root.open_dir(""),
            Some(path) => Dir::open(path.as_path(), FinalLink::Follow),
        }
    }
}

impl Journal {
    pub(crate) fn new(run: RunId) -> Self {
        Self { v: VERSION, run, trees: Vec::new(), steps: Vec::new(), rebase: Vec::new() }
    }

    /// Whole, and on disk when it returns.
    pub(crate) fn write(&self, home: &Home) -> io::Result<()> {
        let draft = path(home, &self.run, DRAFT);
        fault::point();
        let options =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        let mut file = BufWriter::new(options);
        serde_json::to_writer(&mut file, self)?;
        file.flush()?;
        fault::point();
        file.get_ref().sync_all()?;
        std::fs::rename(&draft, path(home, &self.run, OPEN))?;
        fault::point();
        sync(home)
    }

    /// While it is not done.
    pub(crate) fn path(&self, home: &Home) -> PathBuf {
        path(home, &self.run, OPEN)
    }

    /// From here on it is done.
    pub(crate) fn commit(&self, home: &Home) -> io::Result<()> {
        fault::point();
        let (open, committed) = (path(home, &self.run, OPEN), path(home, &self.run, COMMITTED));
        std::fs::rename(&open, &committed)?;
        fault::point();
        match sync(home) {
            // Whoever undoes it now must not be taken for one who only tidies up.
            Err(error) if std::fs::rename(&committed, &open).is_ok() => Err(error),
            // The mark is there, on disk or not, and it is true.
            _ => Ok(()),
        }
    }

    /// Nothing is left to do.
    pub(crate) fn remove(home: &Home, run: &RunId) -> io::Result<()> {
        fault::point();
        for end in [OPEN, COMMITTED, DRAFT] {
            match std::fs::remove_file(path(home, run, end)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// What a process that is gone has left, if anything.
    pub(crate) fn read(home: &Home, run: &RunId) -> io::Result<Option<(Self, Phase)>> {
        for (end, phase) in [(COMMITTED, Phase::Committed), (OPEN, Phase::Open)] {
            let file = match File::open(path(home, run, end)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let journal: Self = serde_json::from_reader(BufReader::new(file))?;
            if journal.v != VERSION {
                let why =
                    format!("it is of version {}, and this belljar knows {VERSION}", journal.v);
                return Err(io::Error::other(why));
            }
            return Ok(Some((journal, phase)));
        }
        Ok(None)
    }

    /// Runs that have one. Cheap where there is none.
    pub(crate) fn runs(home: &Home) -> io::Result<Vec<RunId>> {
        let entries = match std::fs::read_dir(home.applying()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut runs = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let (head, end) = match name.to_str().and_then(|name| name.split_once('.')) {
                Some(parts) => parts,
                None => continue,
            };
            if matches!(end, OPEN | COMMITTED | DRAFT) {
                runs.extend(head.parse::<RunId>().ok().filter(|run| !runs.contains(run)));
            }
        }
        Ok(runs)
    }
}

fn path(home: &Home, run: &RunId, end: &str) -> PathBuf {
    home.applying().join(format!("{run}.{end}"))
}

/// The names in a directory, on disk.
fn sync(home: &Home) -> io::Result<()> {
    sync_directory(&home.applying())
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
