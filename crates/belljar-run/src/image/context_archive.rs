//! Streams the build context to the engine as a tar archive.
//!
//! The content must match the hashes that were taken before: a file that has changed since then aborts the archive, and
//! engines reject an incomplete archive.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::text::escape;

use super::context::{Context, ContextEntry, ContextKind, open_again};

const BLOCK: usize = 512;
const CHUNK: usize = 64 * 1024;
const FILE_MODE: u32 = 0o644;
/// 1980-01-02: ZIP and similar formats support no earlier time.
const FIXED_MTIME: i64 = 315_619_200;

/// A file whose content is already in memory.
#[derive(Clone, Debug)]
pub(super) struct PreloadedFile {
    pub(super) path: Vec<u8>,
    pub(super) content: Vec<u8>,
}

/// An iterator over the chunks of the archive.
pub(super) struct ContextArchive {
    context: Option<Context>,
    preloaded: std::vec::IntoIter<PreloadedFile>,
    entries: std::vec::IntoIter<ContextEntry>,
    open: Option<OpenFile>,
    over: bool,
}

struct OpenFile {
    path: Vec<u8>,
    file: File,
    size: u64,
    read: u64,
    hasher: blake3::Hasher,
    hash: blake3::Hash,
}

impl ContextArchive {
    /// A preloaded file replaces a file of the context with the same path.
    pub(super) fn new(context: Option<Context>, preloaded: Vec<PreloadedFile>) -> Self {
        let mut context = context;
        let mut entries = context
            .as_mut()
            .map(|context| std::mem::take(&mut context.entries))
            .unwrap_or_default();
        entries.retain(|entry| preloaded.iter().all(|preloaded| preloaded.path != entry.path));
        Self {
            context,
            preloaded: preloaded.into_iter(),
            entries: entries.into_iter(),
            open: None,
            over: false,
        }
    }

    fn next_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(open) = &mut self.open {
            let (chunk, ended) = open.next_chunk()?;
            if ended {
                self.open = None;
            }
            return Ok(Some(chunk));
        }
        if let Some(preloaded) = self.preloaded.next() {
            let mut header = header(FILE_MODE, FIXED_MTIME);
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(preloaded.content.len() as u64);
            let mut chunk =
                head(|to| to.append_data(&mut header, path(&preloaded.path), io::empty()))?;
            chunk.extend_from_slice(&preloaded.content);
            pad(&mut chunk, preloaded.content.len() as u64);
            return Ok(Some(chunk));
        }
        if let Some(entry) = self.entries.next() {
            return self.begin(entry).map(Some);
        }
        if self.over {
            return Ok(None);
        }
        self.over = true;
        Ok(Some(vec![0; 2 * BLOCK])) // the end marker of tar
    }

    fn begin(&mut self, entry: ContextEntry) -> io::Result<Vec<u8>> {
        let ContextEntry { path: name, mode, modified, kind } = entry;
        let mut header = header(mode, modified);
        header.set_size(0);
        match kind {
            ContextKind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                head(|to| to.append_data(&mut header, path(&name), io::empty()))
            }
            ContextKind::Link { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                head(|to| to.append_link(&mut header, path(&name), path(&target)))
            }
            ContextKind::File { size, hash } => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(size);
                let root = self.context.as_ref().map(|context| &context.root);
                let root = root.ok_or(io::ErrorKind::NotFound)?;
                let file = open_again(root, &name).map_err(|_| changed(&name))?;
                let chunk = head(|to| to.append_data(&mut header, path(&name), io::empty()))?;
                let hasher = blake3::Hasher::new();
                self.open = Some(OpenFile { path: name, file, size, read: 0, hasher, hash });
                Ok(chunk)
            }
        }
    }
}

impl Iterator for ContextArchive {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_chunk().transpose()
    }
}

impl OpenFile {
    /// The next chunk, and whether it was the last.
    fn next_chunk(&mut self) -> io::Result<(Vec<u8>, bool)> {
        let most = (self.size - self.read).min(CHUNK as u64);
        let mut chunk = Vec::new();
        // Read one more byte at the end to detect a file that has grown.
        let ends = self.read + most == self.size;
        let limit = most + u64::from(ends);
        (&self.file).take(limit).read_to_end(&mut chunk)?;
        if chunk.len() as u64 != most {
            return Err(changed(&self.path));
        }
        self.hasher.update(&chunk);
        self.read += most;
        if !ends {
            return Ok((chunk, false));
        }
        if self.hasher.finalize() != self.hash {
            return Err(changed(&self.path));
        }
        pad(&mut chunk, self.size);
        Ok((chunk, true))
    }
}

fn changed(path: &[u8]) -> io::Error {
    io::Error::other(format!("{} changed while it was being read", escape(path)))
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn header(mode: u32, modified: i64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(modified).unwrap_or(0));
    header
}

/// The header blocks before an entry's content.
fn head(write: impl FnOnce(&mut tar::Builder<Vec<u8>>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    write(&mut builder)?;
    Ok(std::mem::take(builder.get_mut()))
}

fn pad(chunk: &mut Vec<u8>, size: u64) {
    let over = (size % BLOCK as u64) as usize;
    if over > 0 {
        chunk.resize(chunk.len() + BLOCK - over, 0);
    }
}
