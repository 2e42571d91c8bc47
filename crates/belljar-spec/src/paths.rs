//! Paths as text: made absolute and cleaned without asking the file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::text::OsText;

/// A path that can be used: not empty, and without NUL bytes.
pub fn checked(path: &OsStr) -> Result<OsText, String> {
    if path.is_empty() {
        return Err("the path is empty".into());
    }
    if path.as_bytes().contains(&0) {
        return Err("the path contains a NUL byte".into());
    }
    Ok(path.into())
}

/// Expands `~`, starts a relative path at `base`, and cleans the result.
pub fn absolute(path: &Path, base: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => clean(&home.join(rest)),
        _ => clean(&base.join(path)),
    }
}

/// Drops `.` and lets `..` take back what stands before it. Not what the kernel does with a link in
/// the middle; but what is checked is then what is used.
pub fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match cleaned.components().next_back() {
                Some(Component::Normal(_)) => _ = cleaned.pop(),
                // Above the root is the root.
                Some(Component::RootDir) => {}
                _ => cleaned.push(".."),
            },
            other => cleaned.push(other),
        }
    }
    if path.is_absolute() && !cleaned.is_absolute() { PathBuf::from("/") } else { cleaned }
}

/// A relative path that stays where it starts, cleaned; nothing if it leaves, or names nothing.
pub fn inner(path: &Path) -> Option<PathBuf> {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!cleaned.as_os_str().is_empty()).then_some(cleaned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_clean() {
        let at = |path: &str| absolute(Path::new(path), Path::new("/base"), Some(Path::new("/h")));
        for (path, want) in [
            ("x", "/base/x"),
            (".", "/base"),
            ("./x/../y", "/base/y"),
            ("../../..", "/"),
            ("~", "/h"),
            ("~/x", "/h/x"),
            ("~x", "/base/~x"),
            ("/a//b/.", "/a/b"),
            ("/..", "/"),
        ] {
            assert_eq!(at(path), Path::new(want), "{path}");
        }
    }

    #[test]
    fn an_inner_path_does_not_leave() {
        assert_eq!(inner(Path::new("./a/b")), Some("a/b".into()));
        for path in ["", ".", "..", "a/../..", "a/../b", "/a"] {
            assert_eq!(inner(Path::new(path)), None, "{path}");
        }
    }
}
