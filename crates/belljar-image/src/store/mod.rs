//! The content store: blobs, unpacked layers, and the names of images, in one directory.
//!
//! ```text
//! lock                      taken shared to read, exclusively to change what is below
//! index.json                names of images and the digests of their manifests
//! blobs/sha256/<hex>        manifests, configurations and layers, as they were fetched
//! layers/<variant>/<hex>/   one unpacked layer: tree/ and layer.json
//! locks/<hex>.use           held shared by whoever uses the image with this manifest
//! locks/<hex>.unpack        held by whoever unpacks that image, so that others wait instead of doing it too
//! tmp/<name>/               work of one process, with a lock of its own
//! ```
//!
//! An unpacked layer is named by its chain id, the digest over it and the layers below, as engines do: what it
//! must contain depends on what it covers. `<variant>` says how it was unpacked.
//!
//! Everything is made below `tmp/` and moved into place under the exclusive lock, so that a killed process
//! leaves nothing but its directory in `tmp/`, which the next process that writes finds unlocked and removes.
//! What is being added is protected from `prune` by lying in a live `tmp/` directory, or by a pin there.

mod blobs;
mod error;
mod hold;
mod incoming;
mod index;
mod layers;
mod lock;
mod prune;
mod query;
mod take_in;
mod work;

pub use error::StoreError;
pub use hold::{HeldImage, HeldLayer, HoldError};
pub use incoming::BlobError;
pub use layers::{UnpackImageError, UnpackProgress};
pub use prune::{PruneReport, PruneScope, RemoveError, Removed};
pub use query::{Image, ImageSummary, LayerFacts};
pub use take_in::{MovedName, UnpackTime};

pub(crate) use incoming::{BlobWriter, Expected, Incoming, NewImage};

use std::path::{Path, PathBuf};

use belljar_tree::{Access, Dir, FinalLink};

/// What only the owner may enter: layers can hold setuid files.
const PRIVATE: u32 = 0o700;
const DIRECTORIES: [&str; 5] = ["blobs", "blobs/sha256", "layers", "locks", "tmp"];

/// A content store. Any number of processes may have the same one open.
#[derive(Debug)]
pub struct Store {
    root: Dir,
    path: PathBuf,
}

impl Store {
    /// Opens the store in a directory, which is made if it is not there; the one above it must be.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let made = rustix::fs::mkdir(&path, rustix::fs::Mode::from_raw_mode(PRIVATE));
        match made {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(StoreError::io("make", &path, error)),
        }
        let root = Dir::open_for(&path, FinalLink::Refuse, Access::List)
            .map_err(|error| StoreError::io("open", &path, error.errno()))?;
        let about =
            root.stat("").map_err(|error| StoreError::io("look at", &path, error.errno()))?;
        if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
            return Err(StoreError::NotPrivate { path });
        }
        for name in DIRECTORIES {
            match root.create_dir(name, PRIVATE) {
                Ok(()) | Err(belljar_tree::CreateDirError::Exists { .. }) => {}
                Err(error) => return Err(StoreError::io("make", &path.join(name), error.errno())),
            }
        }
        Ok(Self { root, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.root
    }
}
