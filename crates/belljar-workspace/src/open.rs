//! Opens the trees of a run that can be reviewed.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::autorun::GitMarks;
use belljar_spec::{LayeredTree, OsText, RunId};
use belljar_tree::{Dir, FinalLink, OpenDirError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::change::{Change, ContentPlace};
use belljar_record::home::Home;

/// The notes about a run's layered trees, in its directory.
const LAYERS: &str = "layers.json";
/// A note is a few paths.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error(
        "run {run} has nothing to review: none of its trees was mounted as overlay; what it did in an rw \
         tree is in that tree already"
    )]
    NotLayered { run: RunId },
    #[error("the changes of run {run} were discarded")]
    Gone { run: RunId },
    #[error("cannot read {}", .path.display())]
    Notes {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "cannot open \"{path}\", which the run worked on; put it back where it was, or discard the changes"
    )]
    Lower {
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error(
        "\"{path}\" is another directory than the one the run worked on; put that one back, or discard \
         the changes"
    )]
    Exchanged { path: OsText },
    #[error("cannot read \"{path}\"")]
    Read {
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error("the run left no version of \"{path}\"")]
    NoContent { path: OsText },
}

/// Everything of one run that can be reviewed.
#[derive(Debug)]
pub struct Review {
    pub run: RunId,
    pub trees: Vec<OpenTree>,
}

impl Review {
    pub fn open(home: &Home, run: &RunId) -> Result<Self, ReviewError> {
        let directory = home.run_dir(run);
        let notes = read_layers(&directory)
            .map_err(|error| ReviewError::Notes { path: directory.join(LAYERS), error })?;
        if notes.is_empty() {
            return Err(ReviewError::NotLayered { run: *run });
        }
        let opened = notes.into_iter().map(|note| OpenTree::open(&directory, run, note));
        Ok(Self { run: *run, trees: opened.collect::<Result<_, _>>()? })
    }
}

/// One layered tree: the real one, and what holds the changes.
#[derive(Debug)]
pub struct OpenTree {
    pub note: LayeredTree,
    lower: Dir,
    upper: Dir,
    /// Looked for once: some ask it for every change.
    is_git_directory: OnceCell<bool>,
}

impl OpenTree {
    pub(super) fn open(
        directory: &Path,
        run: &RunId,
        note: LayeredTree,
    ) -> Result<Self, ReviewError> {
        let data = upper_of(directory, &note);
        let upper = match open_upper(&data) {
            Err(Errno::NOENT) => return Err(ReviewError::Gone { run: *run }),
            upper => upper
                .map_err(|errno| ReviewError::Notes { path: data.clone(), error: errno.into() })?,
        };
        let path = note.source.clone();
        let failed = |errno: Errno| ReviewError::Lower { path: path.clone(), error: errno.into() };
        let lower = Dir::open(note.source.as_path(), FinalLink::Refuse);
        let lower = lower.map_err(|error| failed(error.errno()))?;
        let found = lower.stat("").map_err(|error| failed(error.errno()))?.identity();
        if (found.device, found.inode) != (note.device, note.inode) {
            return Err(ReviewError::Exchanged { path });
        }
        Ok(Self { note, lower, upper, is_git_directory: OnceCell::new() })
    }

    #[cfg(test)]
    pub(super) fn of(note: LayeredTree, lower: Dir, upper: Dir) -> Self {
        Self { note, lower, upper, is_git_directory: OnceCell::new() }
    }

    /// Whether either side has anything at a path, be it only the mark of something removed.
    pub fn knows(&self, path: &Path) -> bool {
        let is_there = |root: &Dir| root.stat(path).is_ok();
        path.as_os_str().is_empty() || is_there(self.lower()) || is_there(self.upper())
    }

    /// Whether the tree is the git directory of a repository, whose work tree is elsewhere.
    pub fn is_git_directory(&self) -> bool {
        *self.is_git_directory.get_or_init(|| self.has_git_directory(Path::new("")))
    }

    /// Whether git takes a directory of the real tree for one of its own.
    fn has_git_directory(&self, directory: &Path) -> bool {
        let is_there = |name: &&&str| self.lower.stat(directory.join(name)).is_ok();
        let names = GitMarks::NAMES.iter().filter(is_there).map(|name| OsStr::new(*name));
        GitMarks::of(names).is_git_directory()
    }

    /// What is staged in a repository, with a memory of what its files looked like.
    pub fn is_git_index(&self, path: &OsText) -> bool {
        let path = path.as_path();
        let is_index = path.file_name().is_some_and(|name| name == "index");
        is_index
            && (path.ends_with(".git/index")
                || path.parent().is_some_and(|parent| self.has_git_directory(parent)))
    }

    /// The real tree.
    pub(crate) fn lower(&self) -> &Dir {
        &self.lower
    }

    /// What holds the changes.
    pub(crate) fn upper(&self) -> &Dir {
        &self.upper
    }

    /// The content that the run gave a file. It may change while it is read, where the run is live.
    pub fn open_after(&self, change: &Change) -> Result<File, ReviewError> {
        let opened = match &change.place {
            Some(ContentPlace::InUpper(path)) => self.upper.open_file(path.as_path()),
            Some(ContentPlace::InLower(path)) => self.lower.open_file(path.as_path()),
            None => return Err(ReviewError::NoContent { path: change.path.clone() }),
        };
        opened.map_err(|error| self.failed(&change.path, error.errno()))
    }

    /// The content of a file in the real tree, as it is now.
    pub fn open_before(&self, path: &OsText) -> Result<File, ReviewError> {
        let opened = self.lower.open_file(path.as_path());
        opened.map_err(|error| self.failed(path, error.errno()))
    }

    pub(super) fn failed(&self, path: &OsText, errno: Errno) -> ReviewError {
        let path = OsText::from(self.note.target.as_path().join(path.as_path()));
        ReviewError::Read { path, error: errno.into() }
    }
}

/// All of a file, where it is not larger than `most`. Whatever its inode says about its size.
pub fn read_small(file: &mut File, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = Read::by_ref(file).take(most + 1).read_to_end(&mut bytes)?;
    Ok((read as u64 <= most).then_some(bytes))
}

/// Where the changes of a tree lie, in the run's directory.
pub fn upper_of(directory: &Path, note: &LayeredTree) -> PathBuf {
    directory.join("upper").join(note.number.to_string()).join("data")
}

/// The directory is the home's own, but a run can take the mode from what it sees as its tree's root.
fn open_upper(path: &Path) -> Result<Dir, Errno> {
    match Dir::open(path, FinalLink::Refuse) {
        Err(OpenDirError::System { error: Errno::ACCESS, .. }) => {
            // By its name in the directory above: in a directory without permissions not even `.` can be looked up.
            let (above, name) = path.parent().zip(path.file_name()).ok_or(Errno::ACCESS)?;
            let above = Dir::open(above, FinalLink::Refuse)?;
            let entry = above.pin(name)?;
            entry.set_mode(entry.metadata().mode() | 0o700)?;
            Ok(above.open_dir(name)?)
        }
        opened => Ok(opened?),
    }
}

/// Written before the command is let go: without it, it would be unknown what its changes belong to.
pub fn write_layers(directory: &Path, layers: &[LayeredTree]) -> io::Result<()> {
    let path = directory.join(LAYERS);
    let mut file =
        std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(layers)?)?;
    file.sync_data()
}

/// None where the run has none.
pub fn read_layers(directory: &Path) -> io::Result<Vec<LayeredTree>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = match rustix::fs::open(directory.join(LAYERS), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        file => File::from(file?),
    };
    let too_large = || io::Error::new(io::ErrorKind::InvalidData, "it is too large to be one");
    let text = read_small(&mut file, MAX_BYTES)?.ok_or_else(too_large)?;
    Ok(serde_json::from_slice(&text)?)
}
