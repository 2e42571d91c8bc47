//! Stages the files of an archive. What an archive is shows only in its last entries, so that everything is
//! staged first, by digest; what turns out not to be needed is dropped.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use super::LoadError;
use crate::digest::Digest;
use crate::ingest::{ImageLimits, read_staged};
use crate::manifest::MAX_JSON;
use crate::store::{Expected, Incoming};
use crate::tar::{TarEntry, TarKind, TarLimits, TarReader};

/// `docker save` writes four for each layer.
const MAX_ENTRIES: u64 = 20_000;
const MAX_LINKS: usize = 8;

/// The files of an archive by name.
#[derive(Debug, Default)]
pub(super) struct ArchiveFiles {
    files: BTreeMap<String, ArchiveFile>,
}

#[derive(Debug)]
enum ArchiveFile {
    Staged {
        digest: Digest,
        size: u64,
    },
    /// To another name; `docker save` writes a layer once and links to it.
    Link(String),
}

impl ArchiveFiles {
    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Follows links between names of the archive; they never leave it.
    pub(super) fn find(&self, name: &str) -> Result<(Digest, u64), LoadError> {
        let missing = || LoadError::MissingFile { path: shown(name) };
        let mut at = plain(name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..MAX_LINKS {
            match self.files.get(&at).ok_or_else(missing)? {
                ArchiveFile::Staged { digest, size } => return Ok((*digest, *size)),
                ArchiveFile::Link(target) => at.clone_from(target),
            }
        }
        Err(missing())
    }

    /// A JSON file.
    pub(super) fn read(&self, name: &str, incoming: &Incoming<'_>) -> Result<Vec<u8>, LoadError> {
        let (digest, size) = self.find(name)?;
        if size > MAX_JSON {
            return Err(LoadError::Limit { what: "bytes in a JSON file", most: MAX_JSON });
        }
        Ok(read_staged(incoming, digest)?)
    }
}

pub(super) fn stage(
    input: &mut dyn BufRead,
    incoming: &mut Incoming<'_>,
    limits: ImageLimits,
) -> Result<ArchiveFiles, LoadError> {
    let mut archive = TarReader::new(input, TarLimits::default());
    let mut found = ArchiveFiles::default();
    let (mut entries, mut bytes) = (0_u64, 0_u64);
    while let Some(entry) = archive.next_entry()? {
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(LoadError::Limit { what: "entries", most: MAX_ENTRIES });
        }
        let Some(name) = plain(&entry.path) else { continue };
        let file = match entry.kind {
            TarKind::File if entry.segments.is_none() => {
                bytes = bytes.saturating_add(entry.size);
                if bytes > limits.blob_bytes {
                    return Err(LoadError::Limit { what: "bytes", most: limits.blob_bytes });
                }
                let mut data = EntryData { archive: &mut archive };
                let expected = Expected::Unknown { most: entry.size };
                let (digest, size) = incoming.add(&mut data, expected)?;
                ArchiveFile::Staged { digest, size }
            }
            TarKind::Symlink | TarKind::HardLink => match link_target(&name, &entry) {
                Some(target) => ArchiveFile::Link(target),
                None => continue,
            },
            _ => continue,
        };
        found.files.insert(name, file);
    }
    Ok(found)
}

/// Plain names between slashes. Nothing: the name is of no use, and whatever needs it is missing.
fn plain(path: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(path).ok()?;
    let mut names = Vec::new();
    for name in text.split('/') {
        match name {
            "" | "." => {}
            ".." => return None,
            name => names.push(name),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

/// Of a symbolic link from the link's directory, of a hard link from the archive's root.
fn link_target(name: &str, entry: &TarEntry) -> Option<String> {
    let target = std::str::from_utf8(&entry.link).ok()?;
    if entry.kind == TarKind::HardLink {
        return plain(entry.link.as_slice());
    }
    if target.starts_with('/') {
        return None;
    }
    let mut names: Vec<&str> = name.split('/').collect();
    names.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            part => names.push(part),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

fn shown(name: &str) -> String {
    let head: String = name.chars().take(300).collect();
    belljar_spec::text::escape(head.as_bytes())
}

/// The current entry of an archive as a stream.
struct EntryData<'a, R> {
    archive: &'a mut TarReader<R>,
}

impl<R: BufRead> BufRead for EntryData<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.archive.data(u64::MAX).map_err(io::Error::other)
    }

    fn consume(&mut self, bytes: usize) {
        self.archive.consume(bytes);
    }
}

impl<R: BufRead> Read for EntryData<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let length = piece.len().min(into.len());
        into[..length].copy_from_slice(&piece[..length]);
        self.consume(length);
        Ok(length)
    }
}
