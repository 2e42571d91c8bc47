//! Paths of entries: bytes of an archive that become names below the target, or are refused.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::error::UnpackProblem;

const WHITEOUT: &[u8] = b".wh.";
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const MAX_NAME: usize = 255;

/// Plain names, without `.` and `..`. None at all: the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryPath {
    names: Vec<OsString>,
}

/// What a name means besides a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Special {
    No,
    /// The lower layers' entry at this path is removed.
    Whiteout(EntryPath),
    /// Everything that lower layers have in this directory is removed.
    Opaque(EntryPath),
    /// Bookkeeping of aufs.
    Ignored,
}

impl EntryPath {
    pub(super) fn parse(bytes: &[u8], depth: usize) -> Result<Self, UnpackProblem> {
        if bytes.contains(&0) {
            return Err(UnpackProblem::Nul);
        }
        let mut names = Vec::new();
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return Err(UnpackProblem::ParentComponent),
                name if name.len() > MAX_NAME => return Err(UnpackProblem::LongName),
                name => names.push(OsString::from_vec(name.to_vec())),
            }
            if names.len() > depth {
                return Err(UnpackProblem::Limit {
                    what: "levels of directories",
                    most: depth as u64,
                });
            }
        }
        Ok(Self { names })
    }

    pub(super) fn names(&self) -> &[OsString] {
        &self.names
    }

    /// The names above the last, and that one. Nothing: the root.
    pub(super) fn split(&self) -> Option<(&[OsString], &OsStr)> {
        let (last, above) = self.names.split_last()?;
        Some((above, last))
    }

    /// Names with the prefix of whiteouts are never names of files.
    pub(super) fn special(&self) -> Result<Special, UnpackProblem> {
        let is_reserved = |name: &OsString| name.as_bytes().starts_with(WHITEOUT);
        let Some(place) = self.names.iter().position(is_reserved) else { return Ok(Special::No) };
        let is_last = place + 1 == self.names.len();
        let above = || Self { names: self.names[..place].to_vec() };
        match self.names[place].as_bytes() {
            OPAQUE if is_last => Ok(Special::Opaque(above())),
            name if name.starts_with(RESERVED) => Ok(Special::Ignored),
            name if is_last => {
                let hidden = &name[WHITEOUT.len()..];
                if matches!(hidden, b"" | b"." | b"..") {
                    return Err(UnpackProblem::WhiteoutName);
                }
                let mut path = above();
                path.names.push(OsString::from_vec(hidden.to_vec()));
                Ok(Special::Whiteout(path))
            }
            _ => Err(UnpackProblem::WhiteoutName),
        }
    }

    /// For calls that take a path below a directory.
    pub(super) fn to_path(&self) -> std::path::PathBuf {
        self.names.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> EntryPath {
        EntryPath::parse(text.as_bytes(), 10).unwrap()
    }

    #[test]
    fn paths_are_made_of_plain_names() {
        assert_eq!(path("./a//b/./c/").names(), ["a", "b", "c"]);
        assert_eq!(path("/etc/passwd").names(), ["etc", "passwd"]);
        assert_eq!(path("./").split(), None);
        assert!(matches!(EntryPath::parse(b"a/../b", 9), Err(UnpackProblem::ParentComponent)));
        assert!(matches!(EntryPath::parse(b"..", 9), Err(UnpackProblem::ParentComponent)));
        assert!(matches!(EntryPath::parse(b"a\0b", 9), Err(UnpackProblem::Nul)));
        assert!(matches!(EntryPath::parse(&[b'a'; 256], 9), Err(UnpackProblem::LongName)));
        assert!(EntryPath::parse(&[b'a'; 255], 9).is_ok());
        assert!(matches!(EntryPath::parse(b"a/b/c", 2), Err(UnpackProblem::Limit { .. })));
        assert!(EntryPath::parse(b"\xff\xfe", 9).is_ok(), "names are bytes");
    }

    #[test]
    fn whiteouts_name_what_they_hide() {
        assert_eq!(path("a/b").special().unwrap(), Special::No);
        assert_eq!(path("a/.wh.b").special().unwrap(), Special::Whiteout(path("a/b")));
        assert_eq!(path("a/.wh..wh..opq").special().unwrap(), Special::Opaque(path("a")));
        assert_eq!(path(".wh..wh..opq").special().unwrap(), Special::Opaque(path("")));
        assert_eq!(path(".wh..wh.plnk/1.2").special().unwrap(), Special::Ignored);
        for bad in [".wh.", "a/.wh..", ".wh...", "a/.wh.b/c"] {
            assert!(matches!(path(bad).special(), Err(UnpackProblem::WhiteoutName)), "{bad}");
        }
    }
}
