//! Recognises a file on the other side of a boundary by its metadata and content.
//!
//! A path or an error is not enough: an image has other files under the same names.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// Bytes of a file that are compared.
const MAX_READ: u64 = 64 * 1024;
/// Shorter files may have the same content by chance.
const MIN_CONTENT: u64 = 256;

/// Times are in nanoseconds, so that files which were created separately differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    is_directory: bool,
    inode: u64,
    size: u64,
    modified: i128,
    changed: i128,
    /// `None` if the file system has no creation time.
    created: Option<u128>,
    /// Digest of the readable content.
    content: Option<u64>,
}

impl FileIdentity {
    /// The identity of a regular file or a directory.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        if !found.is_file() && !found.is_dir() {
            return None;
        }
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Some(Self {
            is_directory: found.is_dir(),
            inode: found.ino(),
            size: found.len(),
            modified: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed: nanoseconds(found.ctime(), found.ctime_nsec()),
            created: created(&found),
            content: if found.is_file() { content(path) } else { None },
        })
    }

    /// Whether both are the same file or directory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if self.is_directory != other.is_directory {
            return false;
        }
        // Also if the file was written to meanwhile.
        if self.inode == other.inode && self.created.is_some() && self.created == other.created {
            return true;
        }
        // gVisor has its own inode numbers.
        let times = |mark: &Self| (mark.size, mark.modified, mark.changed);
        let differs =
            self.content.is_some() && other.content.is_some() && self.content != other.content;
        !differs && times(self) == times(other)
    }

    /// Whether both have the same content, long enough not to be a coincidence.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        self.size >= MIN_CONTENT && self.content.is_some() && self.content == other.content
    }

    /// Whether the file contains exactly this text.
    pub(crate) fn holds(&self, text: &str) -> bool {
        self.content == Some(digest(text.as_bytes()))
    }
}

fn created(found: &Metadata) -> Option<u128> {
    let since = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_nanos()).filter(|created| *created != 0)
}

fn content(path: &Path) -> Option<u64> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_READ).read_to_end(&mut bytes).ok()?;
    Some(digest(&bytes))
}

/// Stable across processes of this executable, which both arms run.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_another_name_and_a_copy_is_not() {
        let base = std::env::temp_dir().join(format!("belljar-mark-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let at = |name: &str| base.join(name);
        std::fs::write(at("one"), "canary\n").unwrap();
        std::fs::hard_link(at("one"), at("same")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30)); // the clock has moved on
        std::fs::write(at("copy"), "canary\n").unwrap();
        let mark = |name: &str| FileIdentity::of(&at(name)).unwrap();
        assert!(mark("one").is_same(&mark("same")));
        assert!(!mark("one").is_same(&mark("copy")));
        assert!(mark("copy").holds("canary\n") && !mark("copy").holds("canary"));
        assert!(!mark("one").has_same_content(&mark("copy")), "too short to tell");
        assert!(FileIdentity::of(&at("missing")).is_none());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
