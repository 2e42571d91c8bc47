//! The directories of a run on the host. Not part of the record: they are paths of one machine.

use std::path::PathBuf;

use crate::writable::WritableTree;

/// Where the layers of an image lie.
#[derive(Clone, Debug)]
pub struct ImageLayers {
    /// The directory that holds them all.
    pub base: PathBuf,
    /// Paths in it, bottom first.
    pub layers: Vec<PathBuf>,
}

/// Where a run lives on the host, and what it must never be given.
#[derive(Clone, Debug)]
pub struct HostPaths {
    pub run: String,
    /// The run's directory, which nothing inside can reach.
    pub directory: PathBuf,
    /// Where copies of belljar itself are stored, for engines to mount.
    pub bin: PathBuf,
    /// Belljar's own store of images.
    pub images: PathBuf,
    /// The image that is the root, while somebody holds it.
    pub image: Option<ImageLayers>,
    /// Identifies the owner of a container; no other home can know it.
    pub owner: String,
    /// `home/` in the run's directory.
    pub home: PathBuf,
    /// `upper/` in the run's directory: what the run changes in layered trees. Made when the first is bound.
    pub upper: PathBuf,
    /// What layered trees begin with instead of nothing: `upper/` in a checkpoint of another run.
    pub seed: Option<PathBuf>,
    /// Belljar's directories.
    pub belljar_directories: Vec<PathBuf>,
    /// The running executable: it and its directory are visible in a workspace at most read-only.
    pub executable: Option<PathBuf>,
    /// Trees that a run could write, now or earlier.
    pub run_writable: Vec<WritableTree>,
    /// Directories that people live in.
    pub homes: Vec<PathBuf>,
}
