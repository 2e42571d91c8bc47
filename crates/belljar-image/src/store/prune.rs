//! Removes images, and the content that no image needs any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use belljar_tree::{Dir, RenameMode};

use super::hold::{LOCKS, unpack_lock_name, use_lock_name};
use super::incoming::PINS;
use super::index::{ImageIndex, ImageRecord};
use super::layers::{LAYERS, chain_ids};
use super::lock::{LockMode, StoreLock, is_held};
use super::work::WorkDir;
use super::{PRIVATE, Store, StoreError};
use crate::digest::Digest;
use crate::reference::ImageName;

const DOOMED: &str = "doomed";
const BLOBS: &str = "blobs/sha256";

/// Which images `prune` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneScope {
    /// Those without a name.
    Unnamed,
    /// All that no run uses.
    Unused,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Manifests of the images that are gone.
    pub images: Vec<Digest>,
    pub blobs: u64,
    pub blob_bytes: u64,
    pub layers: u64,
    pub layer_bytes: u64,
}

impl PruneReport {
    pub fn bytes(&self) -> u64 {
        self.blob_bytes + self.layer_bytes
    }
}

/// An image was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("there is no image \"{name}\" here; run: belljar image list")]
    Missing { name: String },
    #[error("the image \"{name}\" is in use by a run; stop it first: belljar ps")]
    InUse { name: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What removing a name did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The image has other names, and stays.
    Name {
        left: Vec<String>,
    },
    Image(PruneReport),
}

/// What must stay.
#[derive(Debug, Default)]
struct Marked {
    blobs: BTreeSet<Digest>,
    chains: BTreeSet<Digest>,
}

impl Store {
    /// Removes a name, and the image with its last one. By digest or id: the image with all its names.
    pub fn remove(&self, name: &ImageName) -> Result<Removed, RemoveError> {
        let work = self.work_dir()?;
        let guard = self.lock(LockMode::Exclusive)?;
        let mut index = self.read_index(&guard)?;
        let missing = || RemoveError::Missing { name: name.to_string() };
        let record = self.find(&guard, &index, name).ok_or_else(missing)?;
        let manifest = record.manifest;
        let named = match name {
            ImageName::Reference(reference) if reference.digest().is_none() => {
                let names = [reference.local().canonical(), reference.canonical()];
                let found = record.names.iter().find(|name| names.contains(name));
                Some(found.ok_or_else(missing)?.clone())
            }
            _ => None,
        };
        if let Some(named) = named
            && record.names.len() > 1
        {
            let mut left = Vec::new();
            for image in &mut index.images {
                image.names.retain(|name| *name != named);
                if image.manifest == manifest {
                    left.clone_from(&image.names);
                }
            }
            self.write_index(&guard, &index)?;
            return Ok(Removed::Name { left });
        }
        if self.is_in_use(manifest) {
            return Err(RemoveError::InUse { name: name.to_string() });
        }
        index.images.retain(|image| image.manifest != manifest);
        self.write_index(&guard, &index)?;
        let mut report = self.sweep(&guard, &index, &work)?;
        report.images.push(manifest);
        drop(guard);
        drop(work);
        Ok(Removed::Image(report))
    }

    /// Removes images that nobody needs, and all content that belongs to none.
    pub fn prune(&self, scope: PruneScope) -> Result<PruneReport, StoreError> {
        self.prune_if(|image| match scope {
            PruneScope::Unnamed => image.names.is_empty(),
            PruneScope::Unused => true,
        })
    }

    /// Of these images those that no run uses.
    pub(super) fn prune_if(
        &self,
        is_doomed: impl Fn(&ImageRecord) -> bool,
    ) -> Result<PruneReport, StoreError> {
        let work = self.work_dir()?;
        let guard = self.lock(LockMode::Exclusive)?;
        let mut index = self.read_index(&guard)?;
        let mut gone = Vec::new();
        index.images.retain(|image| {
            let stays = !is_doomed(image) || self.is_in_use(image.manifest);
            if !stays {
                gone.push(image.manifest);
            }
            stays
        });
        if !gone.is_empty() {
            self.write_index(&guard, &index)?;
        }
        let mut report = self.sweep(&guard, &index, &work)?;
        report.images = gone;
        drop(guard);
        // Removing many files takes time, which nobody has to wait for.
        drop(work);
        Ok(report)
    }

    /// Moves all content that is not needed into the work directory, which is removed later.
    fn sweep(
        &self,
        guard: &StoreLock,
        index: &ImageIndex,
        work: &WorkDir,
    ) -> Result<PruneReport, StoreError> {
        let marked = self.mark(guard, index)?;
        let doomed = Path::new(DOOMED);
        work.dir
            .create_dir(doomed, PRIVATE)
            .map_err(|error| StoreError::io("make", &work.path.join(doomed), error.errno()))?;
        let mut report = PruneReport::default();
        let mut number = 0_u64;
        let mut away = |from: &Path| -> Result<(), StoreError> {
            number += 1;
            let to = doomed.join(number.to_string());
            let moved = self.root.rename(from, &work.dir, &to, RenameMode::NoReplace);
            moved.map_err(|error| StoreError::io("remove", &self.path.join(from), error.errno()))
        };
        for name in self.names(Path::new(BLOBS))? {
            let path = Path::new(BLOBS).join(&name);
            if is_marked(&name, &marked.blobs) {
                continue;
            }
            let size = self.root.stat(&path).map_or(0, |found| found.size());
            away(&path)?;
            report.blobs += 1;
            report.blob_bytes += size;
        }
        for variant in self.variants()? {
            for name in self.names(&Path::new(LAYERS).join(&variant))? {
                let path = Path::new(LAYERS).join(&variant).join(&name);
                if is_marked(&name, &marked.chains) {
                    continue;
                }
                let record = self.layer_record(&path).ok().flatten();
                away(&path)?;
                report.layers += 1;
                report.layer_bytes += record.map_or(0, |record| record.report.bytes);
            }
        }
        self.remove_locks(index)?;
        Ok(report)
    }

    /// Images of the index, images in use, and what others are about to add.
    fn mark(&self, _guard: &StoreLock, index: &ImageIndex) -> Result<Marked, StoreError> {
        let mut marked = Marked::default();
        for image in &index.images {
            marked.blobs.extend(image.source);
            self.mark_image(image.manifest, &mut marked);
        }
        for name in self.names(Path::new(LOCKS))? {
            let manifest = name.strip_suffix(".use").and_then(|hex| Digest::from_hex(hex).ok());
            if let Some(manifest) = manifest.filter(|manifest| self.is_in_use(*manifest)) {
                self.mark_image(manifest, &mut marked);
            }
        }
        let tmp = self.root.open_dir("tmp");
        let tmp =
            tmp.map_err(|error| StoreError::io("open", &self.path.join("tmp"), error.errno()))?;
        for work in self.live_work(&tmp)? {
            marked.blobs.extend(pinned(&tmp, &PathBuf::from(work).join(PINS)));
        }
        Ok(marked)
    }

    /// Of a damaged image what can be read of it.
    fn mark_image(&self, digest: Digest, marked: &mut Marked) {
        marked.blobs.insert(digest);
        let Ok(manifest) = self.read_manifest(digest) else { return };
        marked.blobs.insert(manifest.config.digest);
        marked.blobs.extend(manifest.layers.iter().map(|layer| layer.digest));
        if let Ok(config) = self.read_config(manifest.config.digest) {
            marked.chains.extend(chain_ids(&config.diff_ids));
        }
    }

    /// Whether somebody holds the image. Under the exclusive lock.
    fn is_in_use(&self, manifest: Digest) -> bool {
        let path = Path::new(LOCKS).join(use_lock_name(manifest));
        match self.root.open_file_writable(path) {
            Ok(file) => is_held(&file),
            Err(error) => !error.is_missing(),
        }
    }

    /// Lock files of images that are gone.
    fn remove_locks(&self, index: &ImageIndex) -> Result<(), StoreError> {
        let wanted: BTreeSet<String> = index
            .images
            .iter()
            .flat_map(|image| [use_lock_name(image.manifest), unpack_lock_name(image.manifest)])
            .collect();
        for name in self.names(Path::new(LOCKS))? {
            let path = Path::new(LOCKS).join(&name);
            let is_free = || self.root.open_file_writable(&path).is_ok_and(|file| !is_held(&file));
            if !wanted.contains(&name) && is_free() {
                let removed = self.root.remove_all(&path);
                removed.map_err(|error| {
                    StoreError::io("remove", &self.path.join(&path), error.errno())
                })?;
            }
        }
        Ok(())
    }

    /// Names that this store gave; what else lies there is not ours to touch.
    pub(super) fn names(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        let failed =
            |error: rustix::io::Errno| StoreError::io("list", &self.path.join(path), error);
        let mut names = Vec::new();
        for entry in self.root.entries(path).map_err(|error| failed(error.errno()))? {
            let entry = entry.map_err(|error| failed(error.errno()))?;
            names.extend(entry.name.into_string().ok());
        }
        Ok(names)
    }

    /// The ways in which layers were unpacked here.
    pub(super) fn variants(&self) -> Result<Vec<String>, StoreError> {
        self.names(Path::new(LAYERS))
    }
}

fn is_marked(name: &str, marked: &BTreeSet<Digest>) -> bool {
    Digest::from_hex(name).is_ok_and(|digest| marked.contains(&digest))
}

/// What one live process relies upon.
fn pinned(tmp: &Dir, pins: &Path) -> Vec<Digest> {
    let Ok(entries) = tmp.entries(pins) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.name.into_string().ok());
    names.filter_map(|name| Digest::from_hex(&name).ok()).collect()
}
