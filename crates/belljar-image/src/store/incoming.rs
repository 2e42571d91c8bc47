//! Content on its way into the store: staged in a work directory, then moved into place at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_tree::{RenameError, RenameMode};

use super::blobs::blob_path;
use super::lock::LockMode;
use super::work::WorkDir;
use super::{PRIVATE, Store, StoreError};
use crate::digest::{Digest, Hasher, copy_hashed};
use crate::reference::Reference;

const BLOBS: &str = "blobs";
pub(super) const PINS: &str = "pins";

/// What is known of a blob before it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// Anything of at most so many bytes.
    Unknown {
        most: u64,
    },
    Exactly {
        digest: Digest,
        size: u64,
    },
}

/// A blob could not be added.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("cannot read the content")]
    Read(#[source] io::Error),
    #[error("it has more than {most} bytes; the limit protects this machine from hostile images")]
    TooLarge { most: u64 },
    #[error("its size is {found} bytes, and its image says {expected}")]
    Size { expected: u64, found: u64 },
    #[error("its digest is {found}, and its image says {expected}")]
    Digest { expected: Digest, found: Digest },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One more image for the index.
#[derive(Clone, Debug)]
pub(crate) struct NewImage {
    pub(crate) manifest: Digest,
    pub(crate) source: Option<Digest>,
    pub(crate) names: Vec<Reference>,
}

/// Blobs that are being added. Nothing is seen by others before [`Store::take_in`].
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    store: &'a Store,
    work: WorkDir,
    staged: BTreeMap<Digest, u64>,
    number: u64,
}

impl<'a> Incoming<'a> {
    pub(crate) fn begin(store: &'a Store) -> Result<Self, StoreError> {
        let work = store.work_dir()?;
        for name in [BLOBS, PINS] {
            work.dir
                .create_dir(name, PRIVATE)
                .map_err(|error| StoreError::io("make", &work.path.join(name), error.errno()))?;
        }
        Ok(Self { store, work, staged: BTreeMap::new(), number: 0 })
    }

    /// Whether the content is staged, or in the store already; there it is kept until this is over.
    pub(crate) fn has(&mut self, digest: Digest) -> Result<bool, StoreError> {
        if self.staged.contains_key(&digest) {
            return Ok(true);
        }
        let guard = self.store.lock(LockMode::Shared)?;
        let Some(_) = self.store.blob_size(digest)? else { return Ok(false) };
        self.pin(digest)?;
        drop(guard);
        Ok(true)
    }

    /// Under either lock.
    fn pin(&self, digest: Digest) -> Result<(), StoreError> {
        let pin = PathBuf::from(PINS).join(digest.hex());
        match self.work.dir.create_file(&pin, 0o600) {
            Ok(_) | Err(belljar_tree::CreateFileError::Exists { .. }) => Ok(()),
            Err(error) => Err(StoreError::io("make", &self.work.path.join(&pin), error.errno())),
        }
    }

    /// The size of a staged blob.
    pub(crate) fn staged_size(&self, digest: Digest) -> Option<u64> {
        self.staged.get(&digest).copied()
    }

    /// Stages a blob from a stream, and checks it on the way.
    pub(crate) fn add(
        &mut self,
        content: &mut dyn BufRead,
        expected: Expected,
    ) -> Result<(Digest, u64), BlobError> {
        let (name, mut file) = self.new_file()?;
        let path = self.work.path.join(&name);
        let most = match expected {
            Expected::Unknown { most } => most,
            Expected::Exactly { size, .. } => size,
        };
        let mut sink = NamedFile { file: &mut file, failed: None };
        let copied = copy_hashed(content, &mut sink, most);
        if let Some(error) = sink.failed {
            return Err(StoreError::io("write", &path, error).into());
        }
        let Some((digest, size)) = copied.map_err(BlobError::Read)? else {
            self.discard(&name)?;
            return Err(match expected {
                Expected::Unknown { most } => BlobError::TooLarge { most },
                // It did not end where it should have.
                Expected::Exactly { size, .. } => {
                    BlobError::Size { expected: size, found: size + 1 }
                }
            });
        };
        let checked = check(expected, digest, size);
        if checked.is_err() {
            self.discard(&name)?;
        }
        checked?;
        self.stage(&name, digest, size)?;
        Ok((digest, size))
    }

    /// A blob that comes in pieces, perhaps along with others.
    pub(crate) fn new_blob(&mut self) -> Result<BlobWriter, StoreError> {
        let (name, file) = self.new_file()?;
        let path = self.work.path.join(&name);
        Ok(BlobWriter { file, name, path, hasher: Hasher::default(), bytes: 0 })
    }

    /// Stages it, if it is what it should be.
    pub(crate) fn finish_blob(
        &mut self,
        writer: BlobWriter,
        digest: Digest,
        size: u64,
    ) -> Result<(), BlobError> {
        let (found, bytes) = (writer.hasher.finish(), writer.bytes);
        let checked = check(Expected::Exactly { digest, size }, found, bytes);
        if checked.is_err() {
            self.discard(&writer.name)?;
        }
        checked?;
        Ok(self.stage(&writer.name, digest, size)?)
    }

    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> Result<Digest, BlobError> {
        let expected = Expected::Unknown { most: bytes.len() as u64 };
        self.add(&mut &bytes[..], expected).map(|(digest, _)| digest)
    }

    /// A staged or stored blob, open for reading.
    pub(crate) fn open(&self, digest: Digest) -> Result<File, StoreError> {
        if !self.staged.contains_key(&digest) {
            return self.store.open_blob(digest);
        }
        let name = staged_path(digest);
        let file = self.work.dir.open_file(&name);
        file.map_err(|error| StoreError::io("open", &self.work.path.join(&name), error.errno()))
    }

    /// Moves the blobs that the images need into place, and adds those images to the index that are not in it, without
    /// names: these are the result. All blobs are kept until this is over.
    pub(super) fn commit(
        &self,
        needed: &[Digest],
        images: &[NewImage],
    ) -> Result<Vec<Digest>, StoreError> {
        // Once for all of them, before anything refers to them.
        rustix::fs::syncfs(self.work.dir.as_fd())
            .map_err(|error| StoreError::io("sync", &self.work.path, error))?;
        let guard = self.store.lock(LockMode::Exclusive)?;
        for digest in needed.iter().collect::<BTreeSet<_>>() {
            if self.staged.contains_key(digest) {
                self.move_into_place(*digest)?;
            } else if self.store.blob_size(*digest)?.is_none() {
                return Err(StoreError::MissingBlob { digest: *digest });
            }
            self.pin(*digest)?;
        }
        let sync = self.store.root().sync("blobs/sha256");
        sync.map_err(|error| {
            StoreError::io("sync", &self.store.path.join("blobs"), error.errno())
        })?;
        let mut index = self.store.read_index(&guard)?;
        let mut added = Vec::new();
        for image in images {
            if index.images.iter().all(|known| known.manifest != image.manifest) {
                index.add(image.manifest, image.source, &[]);
                added.push(image.manifest);
            }
        }
        self.store.write_index(&guard, &index)?;
        Ok(added)
    }

    fn move_into_place(&self, digest: Digest) -> Result<(), StoreError> {
        let (from, to) = (staged_path(digest), blob_path(digest));
        match self.work.dir.rename(&from, self.store.root(), &to, RenameMode::NoReplace) {
            // The same content, by another process.
            Ok(()) | Err(RenameError::Exists { .. }) => Ok(()),
            Err(error) => Err(StoreError::io("make", &self.store.path.join(&to), error.errno())),
        }
    }

    fn new_file(&mut self) -> Result<(PathBuf, File), StoreError> {
        self.number += 1;
        let name = PathBuf::from(BLOBS).join(format!("new-{}", self.number));
        let file = self.work.dir.create_file(&name, 0o600);
        let file = file
            .map_err(|error| StoreError::io("make", &self.work.path.join(&name), error.errno()))?;
        Ok((name, file))
    }

    fn discard(&self, name: &Path) -> Result<(), StoreError> {
        let removed = self.work.dir.unlink(name);
        removed.map_err(|error| StoreError::io("remove", &self.work.path.join(name), error.errno()))
    }

    fn stage(&mut self, name: &Path, digest: Digest, size: u64) -> Result<(), StoreError> {
        let to = staged_path(digest);
        let renamed = self.work.dir.rename(name, &self.work.dir, &to, RenameMode::Replace);
        renamed
            .map_err(|error| StoreError::io("make", &self.work.path.join(&to), error.errno()))?;
        self.staged.insert(digest, size);
        Ok(())
    }
}

/// A staged file that is being written and hashed.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    file: File,
    name: PathBuf,
    path: PathBuf,
    hasher: Hasher,
    bytes: u64,
}

impl BlobWriter {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        let written = io::Write::write_all(&mut self.file, piece);
        written.map_err(|error| StoreError::io("write", &self.path, error))?;
        self.hasher.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// From the beginning.
    pub(crate) fn restart(&mut self) -> Result<(), StoreError> {
        let emptied = self.file.set_len(0).and_then(|()| io::Seek::rewind(&mut self.file));
        emptied.map_err(|error| StoreError::io("write", &self.path, error))?;
        self.hasher = Hasher::default();
        self.bytes = 0;
        Ok(())
    }
}

fn staged_path(digest: Digest) -> PathBuf {
    PathBuf::from(BLOBS).join(digest.hex())
}

fn check(expected: Expected, digest: Digest, size: u64) -> Result<(), BlobError> {
    match expected {
        Expected::Unknown { .. } => Ok(()),
        Expected::Exactly { size: expected, .. } if expected != size => {
            Err(BlobError::Size { expected, found: size })
        }
        Expected::Exactly { digest: expected, .. } if expected != digest => {
            Err(BlobError::Digest { expected, found: digest })
        }
        Expected::Exactly { .. } => Ok(()),
    }
}

/// Tells a full disk from a broken source.
struct NamedFile<'a> {
    file: &'a mut File,
    failed: Option<io::Error>,
}

impl io::Write for NamedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write(bytes) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
