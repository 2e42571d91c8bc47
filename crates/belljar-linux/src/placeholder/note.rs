//! What one run needs, in a file of its own that is only added to.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// One placeholder. Known by its path: two that differ only in the inode are the same.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    /// Device and inode; not known of one that was about to be made.
    pub(super) inode: Option<(u64, u64)>,
}

impl Entry {
    pub(super) fn planned(path: PathBuf) -> Self {
        Self { path, inode: None }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.path.cmp(&other.path)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
pub(super) struct Note(PathBuf);

impl Note {
    pub(super) fn of(list: &Path, run: &str) -> Self {
        Self(list.join(run))
    }

    pub(super) fn exists(&self) -> bool {
        self.0.exists()
    }

    /// In one write, so that a killed process leaves whole entries.
    pub(super) fn add(&self, entries: &[Entry]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for Entry { path, inode } in entries {
            let numbers =
                inode.map_or(String::new(), |(device, inode)| format!("{device} {inode}"));
            for field in [path.as_os_str().as_bytes(), numbers.as_bytes()] {
                bytes.extend_from_slice(field);
                bytes.push(0);
            }
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&self.0)?.write_all(&bytes)
    }

    /// In the order in which they were added.
    pub(super) fn read(&self) -> io::Result<Vec<Entry>> {
        let bytes = match std::fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes?,
        };
        // What stands behind the last NUL was never whole.
        let whole =
            bytes.iter().rposition(|byte| *byte == 0).map_or(&bytes[..0], |end| &bytes[..end]);
        let fields: Vec<&[u8]> = whole.split(|byte| *byte == 0).collect();
        let pairs = fields.chunks_exact(2).filter(|pair| !pair[0].is_empty());
        let entries = pairs.map(|pair| Entry {
            path: PathBuf::from(OsString::from_vec(pair[0].to_vec())),
            inode: numbers(pair[1]),
        });
        Ok(entries.collect())
    }

    pub(super) fn forget(&self) -> io::Result<()> {
        std::fs::remove_file(&self.0)
    }
}

fn numbers(text: &[u8]) -> Option<(u64, u64)> {
    let (device, inode) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}
