//! Limits for reading a tree that a run fills: depth, length of a path, and bytes of paths that are held at a time.
//!
//! Names of 250 bytes and a hundred thousand directories are made in a second.

use std::path::Path;

/// More are not listed: no reader could review them.
pub(super) const MAX_CHANGES: usize = 250_000;
/// Entries of one directory.
const MAX_ENTRIES: usize = 500_000;
/// A deeper tree is there to hide something.
pub(super) const MAX_DEPTH: usize = 512;
/// Of a link's target, and of a name that the kernel wrote down.
pub(super) const MAX_PATH: usize = 4096;
/// With its separator.
const NAME_MAX: usize = 256;
/// A directory with a longer path holds something that no program can name.
pub(super) const MAX_DIRECTORY: usize = MAX_PATH - NAME_MAX;
/// Bytes of paths and of what links lead to.
pub(super) const MAX_HELD: usize = 128 << 20;
/// What a path takes besides its bytes.
const PATH: usize = 64;

/// Why a directory is not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutOfReach {
    Deep,
    /// No path to what is in it can be given to any program.
    Long,
}

impl OutOfReach {
    /// `depth`: how many names its path has.
    pub(super) fn of(directory: &Path, depth: usize) -> Option<Self> {
        if depth >= MAX_DEPTH {
            Some(Self::Deep)
        } else if directory.as_os_str().len() > MAX_DIRECTORY {
            Some(Self::Long)
        } else {
            None
        }
    }

    pub(super) fn why(self) -> String {
        match self {
            Self::Deep => format!("it is deeper than {MAX_DEPTH} levels"),
            Self::Long => "no program can name what is in it: its path is too long".to_owned(),
        }
    }
}

/// What is left of the bytes that paths may take.
#[derive(Debug)]
pub(super) struct Room {
    left: usize,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { left: MAX_HELD }
    }

    #[cfg(test)]
    pub(super) fn of(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// `false`: there is none for so many of this path, and it is not held.
    pub(super) fn take(&mut self, path: &Path, copies: usize) -> bool {
        self.take_bytes(copies * size_of_path(path))
    }

    pub(super) fn take_bytes(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(super) fn give_back(&mut self, path: &Path, copies: usize) {
        self.left += copies * size_of_path(path);
    }
}

fn size_of_path(path: &Path) -> usize {
    PATH + path.as_os_str().len()
}

/// How much of one directory is listed at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    entries: usize,
    bytes: usize,
    /// What an entry takes besides its name.
    each: usize,
}

impl Listing {
    /// With the whole path of each.
    pub(super) fn of(directory: &Path) -> Self {
        let each = PATH + size_of_path(directory);
        Self { entries: MAX_ENTRIES, bytes: MAX_HELD, each }
    }

    /// Of which the names alone are held, if anything is.
    pub(super) fn of_names(most: usize) -> Self {
        Self { entries: most, bytes: MAX_HELD, each: 0 }
    }

    pub(super) fn at_most(self, most: usize) -> Self {
        Self { entries: self.entries.min(most), ..self }
    }

    /// Whether one more belongs to it.
    pub(super) fn take(&mut self, name: &[u8]) -> bool {
        let entries = self.entries.checked_sub(1);
        let bytes = self.bytes.checked_sub(self.each + 2 * name.len());
        match entries.zip(bytes) {
            Some((entries, bytes)) => {
                (self.entries, self.bytes) = (entries, bytes);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_deep_or_too_long_is_out_of_reach() {
        assert_eq!(OutOfReach::of(Path::new("a/b"), 3), None, "the control");
        assert_eq!(OutOfReach::of(Path::new("a/b"), MAX_DEPTH), Some(OutOfReach::Deep));
        let long = "n".repeat(MAX_PATH);
        assert_eq!(OutOfReach::of(Path::new(&long), 1), Some(OutOfReach::Long));
    }

    #[test]
    fn room_is_taken_and_given_back() {
        let path = Path::new("some/path");
        let mut room = Room::of(4 * (PATH + 9));
        assert!(room.take(path, 3) && room.take(path, 1));
        assert!(!room.take(path, 1));
        room.give_back(path, 2);
        assert!(!room.take(path, 3) && room.take(path, 2));
    }

    #[test]
    fn a_listing_counts_what_it_holds() {
        let fits = |directory: &str, name: &str| {
            let mut listing = Listing::of(Path::new(directory));
            (0..).take_while(|_| listing.take(name.as_bytes())).count()
        };
        assert_eq!(fits("some/directory/of/a/project", "a_file_of_a_project.rs"), MAX_ENTRIES);
        let long = "n".repeat(MAX_DIRECTORY);
        assert!((20_000..40_000).contains(&fits(&long, &"n".repeat(250))));
        let mut few = Listing::of(Path::new("")).at_most(2);
        assert!(few.take(b"a") && few.take(b"b") && !few.take(b"c"));
    }
}
