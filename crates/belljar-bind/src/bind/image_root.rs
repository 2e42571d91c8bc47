//! Binds the layers of an image as the root: pins each, and as root clones them with the run's own owners.

use std::path::PathBuf;

use belljar_spec::{Access, ImageLayers};
use rustix::io::Errno;

use super::tree::pinned;
use super::{BindError, Binder, Pinned, Root};
use crate::identity::HostIdentity;
use crate::mounter::{Depth, ShownOwners, TreeClone};
use crate::resolve::resolve;

/// An image's layers, each of which is a directory below one base.
#[derive(Debug)]
pub struct ImageRoot {
    /// Root clones it here, with the owners that the run sees.
    pub base: Pinned,
    /// Bottom first.
    pub layers: Vec<PinnedLayer>,
}

/// A directory of the base, with its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedLayer {
    /// In the base.
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
}

impl Binder<'_> {
    /// `planned` are the digests of the image's layers, of which those that no file is seen of may be missing here.
    pub(super) fn bind_image(
        &self,
        planned: &[String],
        identity: &HostIdentity,
        root: &mut Root,
    ) -> Result<ImageRoot, BindError> {
        let Some(ImageLayers { base, layers }) = &self.place.image else {
            return Err(BindError::NoImage);
        };
        if layers.len() > planned.len() {
            return Err(BindError::NoImage);
        }
        let opened = resolve(base, &[])?;
        let mut base = pinned(&opened);
        if let Some(root) = root {
            let owners = match identity.block {
                Some(first) => ShownOwners::Block(first),
                None => ShownOwners::OnDisk,
            };
            let (access, depth) = (Access::ReadOnly, Depth::ThisMount);
            let cloned = root.clone_tree(&opened, TreeClone { access, depth, owners });
            base.cloned = Some(cloned.map_err(|error| match error {
                BindError::Clone { path, error: Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM } => {
                    BindError::ImageNotMappable { path }
                }
                error => error,
            })?);
        }
        let pin = |path: &PathBuf| -> Result<PinnedLayer, BindError> {
            let found = resolve(&opened.path.join(path), &[])?;
            let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
            Ok(PinnedLayer { path: path.clone(), device, inode })
        };
        let layers = layers.iter().map(pin).collect::<Result<_, _>>()?;
        Ok(ImageRoot { base, layers })
    }
}
