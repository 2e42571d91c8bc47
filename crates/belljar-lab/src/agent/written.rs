//! Trees that a run could have written, and paths that lead through them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use belljar_spec::OsText;

/// As the kernel has it.
const MOST_LINKS: usize = 40;

/// By their real paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenTrees(Vec<PathBuf>);

impl WrittenTrees {
    /// What is not there, or cannot be followed, counts under the name that it has.
    pub(crate) fn new<'a>(trees: impl IntoIterator<Item = &'a Path>) -> Self {
        let both = |tree: &'a Path| [Some(tree.to_owned()), tree.canonicalize().ok()];
        Self(trees.into_iter().flat_map(both).flatten().collect())
    }

    fn refuse(&self, path: &Path) -> Result<(), String> {
        match self.0.iter().find(|tree| path.starts_with(tree)) {
            None => Ok(()),
            Some(tree) => Err(format!("lies in {}, which a run can write", OsText::from(&**tree))),
        }
    }

    /// The real path. Neither that nor any link on the way may lie in one of the trees: where such a link leads is a
    /// run's decision.
    pub(crate) fn follow(&self, path: &Path) -> Result<PathBuf, String> {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components().map(|part| part.as_os_str().to_owned()).collect()
        };
        let mut ahead = VecDeque::from(parts(path));
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = ahead.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => real = PathBuf::from("/"),
                Some(Component::ParentDir) => {
                    real.pop();
                }
                Some(Component::Normal(name)) => {
                    let next = real.join(name);
                    let facts = next
                        .symlink_metadata()
                        .map_err(|error| format!("is not there: {error}"))?;
                    if !facts.is_symlink() {
                        real = next;
                        continue;
                    }
                    self.refuse(&next)?;
                    links += 1;
                    if links > MOST_LINKS {
                        return Err("leads from link to link without end".to_owned());
                    }
                    let target = next.read_link().map_err(|error| format!("is a link: {error}"))?;
                    for part in parts(&target).into_iter().rev() {
                        ahead.push_front(part);
                    }
                }
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        self.refuse(&real)?;
        Ok(real)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_followed_as_the_kernel_does() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "").unwrap();
        symlink("b/../b/file", root.join("a/relative")).unwrap();
        symlink(root.join("a"), root.join("absolute")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let none = WrittenTrees::default();
        for path in ["a/b/file", "a/./relative", "absolute/b/../relative", "absolute/b/file"] {
            let path = root.join(path);
            assert_eq!(none.follow(&path).unwrap(), path.canonicalize().unwrap());
        }
        for wrong in ["loop", "a/none"] {
            assert!(none.follow(&root.join(wrong)).is_err(), "{wrong}");
        }
        // A tree by any of its names.
        let trees = WrittenTrees::new([root.join("absolute/b").as_path()]);
        assert!(trees.follow(&root.join("a/relative")).is_err());
        assert!(trees.follow(&root.join("a")).is_ok());
    }
}
