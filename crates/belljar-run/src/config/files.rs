//! Reads small files that may be hostile: size limit, no FIFOs, and no links that a run could have planted.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, resolve};
use belljar_spec::WritableTree;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// More than any configuration file needs.
const MAX_BYTES: u64 = 1 << 20;

/// Whether the last component of the path may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

pub(crate) struct ReadFile {
    pub(crate) content: Vec<u8>,
    pub(crate) owner: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{path} is a symbolic link; Belljar does not follow it, because a run may have planted it; replace it \
         with the file itself, or name the file with a flag", path = .0.display()
    )]
    Link(PathBuf),
    #[error(
        "{link} is a symbolic link in {tree}, which a run can write to, so it is not followed; replace it with \
         the file itself, or use the path of its target", link = .link.display(), tree = .tree.display()
    )]
    PlantedLink { link: PathBuf, tree: PathBuf },
    #[error("{path} is not a regular file", path = .0.display())]
    NotRegular(PathBuf),
    #[error("{path} is larger than {MAX_BYTES} bytes, the limit for such files", path = .0.display())]
    TooLarge(PathBuf),
}

// NONBLOCK: opening a FIFO must not block.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// `None` if the file does not exist.
pub(crate) fn read(path: &Path, links: Links) -> Result<Option<ReadFile>, ReadError> {
    let flags = match links {
        Links::Follow => FLAGS,
        Links::Refuse => FLAGS | OFlags::NOFOLLOW,
    };
    read_opened(path, rustix::fs::open(path, flags, Mode::empty()))
}

/// A file that affects a run, and whether a run could have written it.
pub(crate) struct DecisionFile {
    /// With links resolved.
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
    pub(crate) owner: u32,
    /// The tree that contains it, if a run could write to that tree.
    pub(crate) written_in: Option<PathBuf>,
}

/// Reads all files that affect a run, whether a flag, a manifest or a default names them. Follows no link in a tree
/// that a run could write to.
#[derive(Clone, Debug)]
pub(crate) struct DecisionReader {
    trees: Vec<WritableTree>,
}

impl DecisionReader {
    pub(crate) fn new(trees: Vec<WritableTree>) -> Self {
        Self { trees }
    }

    pub(crate) fn trees(&self) -> &[WritableTree] {
        &self.trees
    }

    /// The trees in which no link is followed, plus one more, such as that of an untrusted manifest.
    pub(crate) fn trees_and(&self, tree: Option<&Path>) -> Vec<WritableTree> {
        let more = tree.map(|tree| WritableTree::by_path(tree.to_owned()));
        self.trees.iter().cloned().chain(more).collect()
    }

    /// `None` if the file does not exist. `distrusted` is one more tree in which no link is followed.
    pub(crate) fn read(
        &self,
        path: &Path,
        distrusted: Option<&Path>,
    ) -> Result<Option<DecisionFile>, ReadError> {
        let found = match resolve(path, &self.trees_and(distrusted)) {
            Ok(found) => found,
            Err(ResolveError::Missing { .. }) => return Ok(None),
            Err(ResolveError::PlantedLink { link, tree }) => {
                return Err(ReadError::PlantedLink { link, tree });
            }
            Err(ResolveError::Open { path, error }) => {
                return Err(ReadError::Io { path, error: error.into() });
            }
            Err(error @ (ResolveError::TooManyLinks { .. } | ResolveError::MagicLink { .. })) => {
                let error = io::Error::other(error.to_string());
                return Err(ReadError::Io { path: path.to_owned(), error });
            }
        };
        if FileType::from_raw_mode(found.stat.st_mode) != FileType::RegularFile {
            return Err(ReadError::NotRegular(path.to_owned()));
        }
        // Reopen the resolved descriptor, not the path, which may have changed.
        let again = format!("/proc/self/fd/{}", found.fd.as_raw_fd());
        let file = read_opened(path, rustix::fs::open(again, FLAGS, Mode::empty()))?;
        // `distrusted` only affects links; it is not a tree that a run could write to.
        let written_in = match distrusted {
            None => found.written_in,
            Some(_) => resolve(&found.path, &self.trees).ok().and_then(|found| found.written_in),
        };
        Ok(file.map(|ReadFile { content, owner }| DecisionFile {
            path: found.path,
            content,
            owner,
            written_in,
        }))
    }
}

fn read_opened(path: &Path, opened: Result<OwnedFd, Errno>) -> Result<Option<ReadFile>, ReadError> {
    let io = |error: io::Error| ReadError::Io { path: path.to_owned(), error };
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => return Err(ReadError::Link(path.to_owned())),
        // Opening a socket, or a device without a driver, returns ENXIO.
        Err(Errno::NXIO) => return Err(ReadError::NotRegular(path.to_owned())),
        Err(errno) => return Err(io(errno.into())),
    };
    let stat = rustix::fs::fstat(&file).map_err(|errno| io(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(ReadError::NotRegular(path.to_owned()));
    }
    let mut content = Vec::new();
    let read = File::from(file).take(MAX_BYTES + 1).read_to_end(&mut content).map_err(io)?;
    if read as u64 > MAX_BYTES {
        return Err(ReadError::TooLarge(path.to_owned()));
    }
    Ok(Some(ReadFile { content, owner: stat.st_uid }))
}
