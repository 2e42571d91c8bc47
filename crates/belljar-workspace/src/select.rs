//! Selects changes by the paths that a user gives.

use std::path::{Component, Path, PathBuf};

use belljar_spec::OsText;

use super::change::{Changes, Facts, Kind};

/// What is asked for of one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Everything,
    /// These paths, relative to its root, and what is below them.
    Paths(Vec<PathBuf>),
}

impl Selection {
    pub(crate) fn contains(&self, path: &OsText) -> bool {
        match self {
            Self::Everything => true,
            Self::Paths(paths) => paths.iter().any(|selected| path.as_path().starts_with(selected)),
        }
    }

    /// Whether only single files are asked for, and each of them is in the list.
    pub(crate) fn is_all_files_of(&self, changes: &Changes) -> bool {
        let Self::Paths(paths) = self else { return false };
        let is_directory = |facts: &Option<Facts>| {
            facts.as_ref().is_some_and(|facts| facts.kind == Kind::Directory)
        };
        paths.iter().all(|path| {
            changes.changes.iter().any(|change| {
                change.path.as_path() == path
                    && !is_directory(&change.before)
                    && !is_directory(&change.after)
            })
        })
    }

    /// Whether that very path was named.
    pub(crate) fn names(&self, path: &OsText) -> bool {
        match self {
            Self::Everything => false,
            Self::Paths(paths) => paths.iter().any(|selected| path.as_path() == selected),
        }
    }
}

/// A path as a user writes it, relative to a tree's root: `src/a`, `./src/a`, or an absolute one, of the host or
/// inside. `None`: it is of another tree.
pub fn below_root(given: &Path, source: &Path, target: &Path) -> Option<PathBuf> {
    let relative = match given.is_absolute() {
        true => given.strip_prefix(source).or_else(|_| given.strip_prefix(target)).ok()?,
        false => given,
    };
    let mut path = PathBuf::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_root_of_the_tree() {
        let below = |given: &str| below_root(given.as_ref(), "/host/w".as_ref(), "/in".as_ref());
        assert_eq!(below("a/./b"), Some("a/b".into()));
        assert_eq!(below("/host/w/a"), Some("a".into()));
        assert_eq!(below("/in/a"), Some("a".into()));
        assert_eq!(below("."), Some("".into()));
        assert_eq!(below("a/../b"), Some("b".into()));
        assert_eq!(below("../b"), None);
        assert_eq!(below("/etc/a"), None);
    }

    #[test]
    fn a_directory_selects_what_is_below_and_names_itself_alone() {
        let selection = Selection::Paths(vec!["src".into()]);
        assert!(selection.contains(&"src/a".into()));
        assert!(!selection.contains(&"src2/a".into()));
        assert!(!selection.names(&"src/a".into()));
        assert!(selection.names(&"src".into()));
    }
}
