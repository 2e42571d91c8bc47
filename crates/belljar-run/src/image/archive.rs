//! The context as the engine gets it: a tar archive, made piece by piece while it is sent.
//!
//! What is sent is what was hashed: a file that is another one by now ends the archive with an error, and
//! an engine makes nothing of an archive without an end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::text::escape;

use super::context::{Context, Entry, Kind, open_again};

const BLOCK: usize = 512;
const PIECE: usize = 64 * 1024;
const FILE_MODE: u32 = 0o644;
/// 1980-01-02: formats that a build may put it into know nothing older.
const SOME_TIME: i64 = 315_619_200;

/// A file that is sent as it was read before.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) path: Vec<u8>,
    pub(super) content: Vec<u8>,
}

/// The archive's pieces, in order.
pub(super) struct Pieces {
    context: Option<Context>,
    held: std::vec::IntoIter<Held>,
    entries: std::vec::IntoIter<Entry>,
    open: Option<Open>,
    over: bool,
}

struct Open {
    path: Vec<u8>,
    file: File,
    size: u64,
    read: u64,
    hasher: blake3::Hasher,
    hash: blake3::Hash,
}

impl Pieces {
    /// What is held takes the place of a file of the context that has the same path.
    pub(super) fn new(context: Option<Context>, held: Vec<Held>) -> Self {
        let mut context = context;
        let mut entries = context
            .as_mut()
            .map(|context| std::mem::take(&mut context.entries))
            .unwrap_or_default();
        entries.retain(|entry| held.iter().all(|held| held.path != entry.path));
        Self {
            context,
            held: held.into_iter(),
            entries: entries.into_iter(),
            open: None,
            over: false,
        }
    }

    fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(open) = &mut self.open {
            let (piece, ended) = open.piece()?;
            if ended {
                self.open = None;
            }
            return Ok(Some(piece));
        }
        if let Some(held) = self.held.next() {
            let mut header = header(FILE_MODE, SOME_TIME);
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(held.content.len() as u64);
            let mut piece = head(|to| to.append_data(&mut header, path(&held.path), io::empty()))?;
            piece.extend_from_slice(&held.content);
            pad(&mut piece, held.content.len() as u64);
            return Ok(Some(piece));
        }
        if let Some(entry) = self.entries.next() {
            return self.begin(entry).map(Some);
        }
        if self.over {
            return Ok(None);
        }
        self.over = true;
        Ok(Some(vec![0; 2 * BLOCK])) // the end that tar asks for
    }

    fn begin(&mut self, entry: Entry) -> io::Result<Vec<u8>> {
        let Entry { path: name, mode, modified, kind } = entry;
        let mut header = header(mode, modified);
        header.set_size(0);
        match kind {
            Kind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                head(|to| to.append_data(&mut header, path(&name), io::empty()))
            }
            Kind::Link { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                head(|to| to.append_link(&mut header, path(&name), path(&target)))
            }
            Kind::File { size, hash } => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(size);
                let root = self.context.as_ref().map(|context| &context.root);
                let root = root.ok_or(io::ErrorKind::NotFound)?;
                let file = open_again(root, &name).map_err(|_| changed(&name))?;
                let piece = head(|to| to.append_data(&mut header, path(&name), io::empty()))?;
                let hasher = blake3::Hasher::new();
                self.open = Some(Open { path: name, file, size, read: 0, hasher, hash });
                Ok(piece)
            }
        }
    }
}

impl Iterator for Pieces {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().transpose()
    }
}

impl Open {
    /// The next piece, and whether it was the last.
    fn piece(&mut self) -> io::Result<(Vec<u8>, bool)> {
        let most = (self.size - self.read).min(PIECE as u64);
        let mut piece = Vec::new();
        // One byte more than expected at the end shows that it has grown.
        let ends = self.read + most == self.size;
        let asked = most + u64::from(ends);
        (&self.file).take(asked).read_to_end(&mut piece)?;
        if piece.len() as u64 != most {
            return Err(changed(&self.path));
        }
        self.hasher.update(&piece);
        self.read += most;
        if !ends {
            return Ok((piece, false));
        }
        if self.hasher.finalize() != self.hash {
            return Err(changed(&self.path));
        }
        pad(&mut piece, self.size);
        Ok((piece, true))
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

/// The blocks that stand before an entry's content.
fn head(write: impl FnOnce(&mut tar::Builder<Vec<u8>>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    write(&mut builder)?;
    Ok(std::mem::take(builder.get_mut()))
}

fn pad(piece: &mut Vec<u8>, size: u64) {
    let over = (size % BLOCK as u64) as usize;
    if over > 0 {
        piece.resize(piece.len() + BLOCK - over, 0);
    }
}
