//! Checks a relative path by its text, before the kernel sees any of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Why a path cannot name anything beneath a directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path {path:?} is absolute, and only relative ones can be opened here")]
    Absolute { path: PathBuf },
    #[error("path {path:?} has a `..` in it, which may lead out of the tree")]
    ParentComponent { path: PathBuf },
    #[error("path {path:?} has a NUL byte in it")]
    Nul { path: PathBuf },
    #[error("path {path:?} names no entry of a directory")]
    NoName { path: PathBuf },
}

/// A path of plain names. Empty: the directory itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeneathPath<'a> {
    path: &'a Path,
}

impl<'a> BeneathPath<'a> {
    pub(crate) fn parse(path: &'a Path) -> Result<Self, PathError> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(PathError::Nul { path: path.to_owned() });
        }
        for component in path.components() {
            match component {
                Component::Normal(_) | Component::CurDir => {}
                Component::ParentDir => {
                    return Err(PathError::ParentComponent { path: path.to_owned() });
                }
                Component::RootDir | Component::Prefix(_) => {
                    return Err(PathError::Absolute { path: path.to_owned() });
                }
            }
        }
        Ok(Self { path })
    }

    pub(crate) fn as_path(self) -> &'a Path {
        self.path
    }

    /// The names, without any `.`.
    pub(crate) fn names(self) -> impl Iterator<Item = &'a OsStr> {
        self.path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
    }

    /// The path above the last name, and that name.
    pub(crate) fn split(self) -> Result<(Self, &'a OsStr), PathError> {
        let name = self.path.file_name();
        let name = name.ok_or_else(|| PathError::NoName { path: self.path.to_owned() })?;
        Ok((Self { path: self.path.parent().unwrap_or(Path::new("")) }, name))
    }

    /// Whether it is the directory itself.
    pub(crate) fn is_empty(self) -> bool {
        self.names().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Result<Vec<&OsStr>, PathError> {
        BeneathPath::parse(Path::new(path)).map(|path| path.names().collect())
    }

    #[test]
    fn plain_names_pass_and_everything_that_leads_out_does_not() {
        assert_eq!(names("a/b").unwrap(), ["a", "b"]);
        assert_eq!(names("./a/./b/").unwrap(), ["a", "b"]);
        assert_eq!(names("").unwrap(), [""; 0]);
        assert_eq!(names("...").unwrap(), ["..."]);
        for up in ["..", "a/..", "a/../b", "./.."] {
            assert!(matches!(names(up), Err(PathError::ParentComponent { .. })), "{up}");
        }
        for absolute in ["/", "/a", "//a"] {
            assert!(matches!(names(absolute), Err(PathError::Absolute { .. })), "{absolute}");
        }
        assert!(matches!(names("a\0b"), Err(PathError::Nul { .. })));
    }

    #[test]
    fn the_last_name_is_split_off() {
        let split = |path| BeneathPath::parse(Path::new(path)).unwrap().split();
        let (above, name) = split("a/b/c").unwrap();
        assert_eq!((above.as_path(), name), (Path::new("a/b"), OsStr::new("c")));
        assert!(split("c").unwrap().0.is_empty());
        assert!(split("./c/.").unwrap().0.is_empty());
        assert!(matches!(split(""), Err(PathError::NoName { .. })));
        assert!(matches!(split("."), Err(PathError::NoName { .. })));
    }

    #[test]
    fn messages_escape_what_a_terminal_would_obey() {
        let message = names("\u{1b}[2J\n\u{202e}/..").unwrap_err().to_string();
        assert!(message.contains(r"\u{1b}[2J\n\u{202e}"), "{message}");
        assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'));
    }
}
