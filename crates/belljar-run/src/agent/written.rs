//! Trees that a run could have written, and paths that lead through them.

use std::path::{Path, PathBuf};

use belljar_linux::jail::resolve::resolve;
use belljar_spec::{OsText, WritableTree};

/// By their real paths, and by what they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenTrees(Vec<WritableTree>);

impl WrittenTrees {
    /// Those that are known, and the one that the run will work on.
    pub(crate) fn new(known: &[WritableTree], workspace: Option<&Path>) -> Self {
        let both = |tree: &Path| [Some(tree.to_owned()), tree.canonicalize().ok()];
        let workspace = workspace.into_iter().flat_map(both).flatten().map(WritableTree::by_path);
        Self(known.iter().cloned().chain(workspace).collect())
    }

    /// The real path. Neither that nor any link on the way may lie in one of the trees: where such a link leads is a
    /// run's decision.
    pub(crate) fn follow(&self, path: &Path) -> Result<PathBuf, String> {
        let found = resolve(path, &self.0).map_err(|error| format!("is not taken: {error}"))?;
        match found.written_in {
            None => Ok(found.path),
            Some(tree) => {
                let tree = OsText::from(&*tree);
                Err(format!(
                    "lies in {tree}, which a run can write (if you have checked it: belljar trust --tree {tree})"
                ))
            }
        }
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
        let trees = WrittenTrees::new(&[], Some(root.join("absolute/b").as_path()));
        assert!(trees.follow(&root.join("a/relative")).is_err());
        assert!(trees.follow(&root.join("a")).is_ok());
    }
}
