//! How far a look into a tree goes that somebody else fills: in depth, in the length of a path, and in the bytes of
//! paths that it holds at a time. Names of 250 bytes and a hundred thousand directories are made in a second.

use std::path::Path;

/// More are not listed: nobody looks at them.
pub(super) const MOST_CHANGES: usize = 250_000;
/// Entries of one directory.
pub(super) const MOST_ENTRIES: usize = 500_000;
/// A deeper tree is there to hide something.
pub(super) const DEEPEST: usize = 512;
/// Of a link's target, and of a name that the kernel wrote down.
pub(super) const LONGEST_PATH: usize = 4096;
/// With its separator.
const NAME_MAX: usize = 256;
/// Bytes of paths. A million of the usual length have less.
const MOST_HELD: usize = 96 << 20;
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
        if depth >= DEEPEST {
            Some(Self::Deep)
        } else if directory.as_os_str().len() > LONGEST_PATH - NAME_MAX {
            Some(Self::Long)
        } else {
            None
        }
    }

    pub(super) fn why(self) -> String {
        match self {
            Self::Deep => format!("it is deeper than {DEEPEST} levels"),
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
        Self { left: MOST_HELD }
    }

    #[cfg(test)]
    pub(super) fn of(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// `false`: there is none for this one, and it is not held.
    pub(super) fn take(&mut self, path: &Path) -> bool {
        let left = self.left.checked_sub(PATH + path.as_os_str().len());
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(super) fn give_back(&mut self, path: &Path) {
        self.left += PATH + path.as_os_str().len();
    }
}

/// How many entries of one directory are listed at a time, each with its whole path.
pub(super) fn entries_of(directory: &Path) -> usize {
    let longest = PATH + directory.as_os_str().len() + NAME_MAX;
    (MOST_HELD / longest).min(MOST_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_deep_or_too_long_is_out_of_reach() {
        assert_eq!(OutOfReach::of(Path::new("a/b"), 3), None, "the control");
        assert_eq!(OutOfReach::of(Path::new("a/b"), DEEPEST), Some(OutOfReach::Deep));
        let long = "n".repeat(LONGEST_PATH);
        assert_eq!(OutOfReach::of(Path::new(&long), 1), Some(OutOfReach::Long));
    }

    #[test]
    fn room_is_taken_and_given_back() {
        let path = Path::new("some/path");
        let mut room = Room::of(2 * (PATH + 9));
        assert!(room.take(path) && room.take(path));
        assert!(!room.take(path));
        room.give_back(path);
        assert!(room.take(path));
    }

    #[test]
    fn a_directory_with_a_long_path_lists_fewer() {
        assert!(entries_of(Path::new("src")) > 250_000);
        let long = "n".repeat(LONGEST_PATH - NAME_MAX);
        assert!(entries_of(Path::new(&long)) < 30_000);
    }
}
