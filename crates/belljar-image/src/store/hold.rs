//! Images in use: unpacked, and locked against removal.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use super::layers::{LAYERS, UnpackImageError, UnpackProgress};
use super::lock::{LockMode, open_lock_file};
use super::query::Image;
use super::{Store, StoreError};
use crate::digest::Digest;
use crate::reference::ImageName;
use crate::unpack::{UnpackOptions, UnpackReport};

pub(super) const LOCKS: &str = "locks";

/// An image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error(
        "there is no image \"{name}\" here; run: belljar image pull {name}, or belljar image load FILE"
    )]
    Missing { name: String },
    #[error(transparent)]
    Unpack(#[from] UnpackImageError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An image whose layers are unpacked, and stay until this is dropped.
#[derive(Debug)]
pub struct HeldImage {
    pub image: Image,
    /// The lower directories of an overlay, bottom first. Layers that another one hides completely are left
    /// out, so there can be fewer than the image has.
    pub layers: Vec<HeldLayer>,
    /// The directory that all layers are in.
    pub base: PathBuf,
    lock: File,
}

/// An unpacked layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLayer {
    pub diff_id: Digest,
    pub chain_id: Digest,
    pub path: PathBuf,
    pub report: UnpackReport,
}

impl HeldImage {
    /// The open file that the lock belongs to. Who inherits a copy of it holds the image, too.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Of all unpacked files: what a copy would take.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.report.bytes).sum()
    }
}

pub(super) fn use_lock_name(manifest: Digest) -> String {
    format!("{}.use", manifest.hex())
}

pub(super) fn unpack_lock_name(manifest: Digest) -> String {
    format!("{}.unpack", manifest.hex())
}

impl Store {
    /// Makes an image ready for use: its layers are unpacked if they are not yet, and nothing of it is
    /// removed while the result lives. Of several processes that ask at once one unpacks, and the others wait.
    pub fn hold(
        &self,
        name: &ImageName,
        options: &UnpackOptions,
        progress: &mut dyn FnMut(UnpackProgress),
    ) -> Result<HeldImage, HoldError> {
        let kept = self.keep(name)?;
        let (image, lock) = kept.ok_or_else(|| HoldError::Missing { name: name.to_string() })?;
        let layers = match self.unpacked(&image, options)? {
            Some(layers) => layers,
            None => {
                let turn = self.image_lock(&unpack_lock_name(image.manifest))?;
                rustix::io::retry_on_intr(|| flock(&turn, FlockOperation::LockExclusive)).map_err(
                    |error| StoreError::io("lock an image in", &self.path.join(LOCKS), error),
                )?;
                self.unpack_missing(&image, options, progress)?;
                let layers = self.unpacked(&image, options)?;
                layers.ok_or(StoreError::MissingBlob { digest: image.manifest })?
            }
        };
        let base = self.path.join(LAYERS).join(options.variant());
        Ok(HeldImage { image, layers, base, lock })
    }

    /// The same for an image that is there and unpacked already: changes nothing.
    pub fn hold_unpacked(
        &self,
        name: &ImageName,
        options: &UnpackOptions,
    ) -> Result<Option<HeldImage>, StoreError> {
        let Some((image, lock)) = self.keep(name)? else { return Ok(None) };
        let base = self.path.join(LAYERS).join(options.variant());
        let layers = self.unpacked(&image, options)?;
        Ok(layers.map(|layers| HeldImage { image, layers, base, lock }))
    }

    /// An image, and the lock that keeps its content; nothing if there is none of this name.
    pub(crate) fn keep(&self, name: &ImageName) -> Result<Option<(Image, File)>, StoreError> {
        let guard = self.lock(LockMode::Shared)?;
        let index = self.read_index(&guard)?;
        let Some(record) = self.find(&guard, &index, name) else { return Ok(None) };
        let lock = self.image_lock(&use_lock_name(record.manifest))?;
        // Only who removes images takes it exclusively, and not while we have the store's lock.
        flock(&lock, FlockOperation::NonBlockingLockShared)
            .map_err(|error| StoreError::io("lock an image in", &self.path.join(LOCKS), error))?;
        drop(guard);
        Ok(Some((self.image(record)?, lock)))
    }

    /// Nothing unless all layers are there.
    fn unpacked(
        &self,
        image: &Image,
        options: &UnpackOptions,
    ) -> Result<Option<Vec<HeldLayer>>, StoreError> {
        let variant = options.variant();
        let mut layers = Vec::new();
        for layer in &image.layers {
            let Some(record) = self.layer(&variant, layer.chain_id)? else { return Ok(None) };
            if record.report.hides_all_below {
                layers.clear();
            }
            layers.push(HeldLayer {
                diff_id: layer.diff_id,
                chain_id: layer.chain_id,
                path: self.layer_tree_path(&variant, layer.chain_id),
                report: record.report,
            });
        }
        Ok(Some(layers))
    }

    fn image_lock(&self, name: &str) -> Result<File, StoreError> {
        let shown = self.path.join(LOCKS);
        let locks = self.root.open_dir(LOCKS);
        let locks = locks.map_err(|error| StoreError::io("open", &shown, error.errno()))?;
        open_lock_file(&locks, name, shown.join(name))
    }
}
