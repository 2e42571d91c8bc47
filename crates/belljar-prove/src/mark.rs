//! How a file is recognised on the other side of a boundary: by what it is and what is in it. A path or an
//! error tells nothing, since an image has files of its own under the same names.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// As much of a file as is compared.
const MOST_READ: u64 = 64 * 1024;
/// Shorter ones are alike by chance.
const TELLING: u64 = 256;

/// Times are in nanoseconds, as fine as the kernel's clock: files that were made apart do not share them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    is_directory: bool,
    inode: u64,
    size: u64,
    modified: i128,
    changed: i128,
    /// `None` where the file system does not keep it.
    born: Option<u128>,
    /// Of what could be read of it.
    content: Option<u64>,
}

impl Mark {
    /// Of a regular file or a directory that can at least be looked at.
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
            born: born(&found),
            content: if found.is_file() { content(path) } else { None },
        })
    }

    /// It is the very same file or directory, seen from two places.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if self.is_directory != other.is_directory {
            return false;
        }
        // Also of one that is written to meanwhile.
        if self.inode == other.inode && self.born.is_some() && self.born == other.born {
            return true;
        }
        // gVisor has inodes of its own.
        let times = |mark: &Self| (mark.size, mark.modified, mark.changed);
        let differs =
            self.content.is_some() && other.content.is_some() && self.content != other.content;
        !differs && times(self) == times(other)
    }

    /// The same text is in it, and enough of it to be no chance.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        self.size >= TELLING && self.content.is_some() && self.content == other.content
    }

    /// This text is in it and nothing else.
    pub(crate) fn holds(&self, text: &str) -> bool {
        self.content == Some(digest(text.as_bytes()))
    }
}

fn born(found: &Metadata) -> Option<u128> {
    let since = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_nanos()).filter(|born| *born != 0)
}

fn content(path: &Path) -> Option<u64> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MOST_READ).read_to_end(&mut bytes).ok()?;
    Some(digest(&bytes))
}

/// The same in every process of this executable, which both arms are.
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
        let mark = |name: &str| Mark::of(&at(name)).unwrap();
        assert!(mark("one").is_same(&mark("same")));
        assert!(!mark("one").is_same(&mark("copy")));
        assert!(mark("copy").holds("canary\n") && !mark("copy").holds("canary"));
        assert!(!mark("one").has_same_content(&mark("copy")), "too short to tell");
        assert!(Mark::of(&at("missing")).is_none());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
