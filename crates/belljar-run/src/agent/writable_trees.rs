//! Resolves paths on the host and rejects those that a run could have redirected.

use std::path::{Path, PathBuf};

use belljar_bind::resolve::resolve;
use belljar_spec::{OsText, WritableTree};

/// The trees that a run could have written to.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunWritableTrees(Vec<WritableTree>);

impl RunWritableTrees {
    /// The recorded trees, and the workspace of the run that is being prepared.
    pub(crate) fn new(known: &[WritableTree], workspace: Option<&Path>) -> Self {
        let both = |tree: &Path| [Some(tree.to_owned()), tree.canonicalize().ok()];
        let workspace = workspace.into_iter().flat_map(both).flatten().map(WritableTree::by_path);
        Self(known.iter().cloned().chain(workspace).collect())
    }

    /// Resolves a path. Neither the result nor a link on the way may be inside one of the trees, because a run could
    /// have chosen where such a link points.
    pub(crate) fn resolve(&self, path: &Path) -> Result<PathBuf, String> {
        let found = resolve(path, &self.0).map_err(|error| format!("cannot be used: {error}"))?;
        match found.written_in {
            None => Ok(found.path),
            Some(tree) => {
                let tree = OsText::from(&*tree);
                Err(format!(
                    "is inside {tree}, which a run can write to (after checking that tree: belljar trust --tree {tree})"
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
    fn a_path_is_resolved_as_the_kernel_does() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "").unwrap();
        symlink("b/../b/file", root.join("a/relative")).unwrap();
        symlink(root.join("a"), root.join("absolute")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let none = RunWritableTrees::default();
        for path in ["a/b/file", "a/./relative", "absolute/b/../relative", "absolute/b/file"] {
            let path = root.join(path);
            assert_eq!(none.resolve(&path).unwrap(), path.canonicalize().unwrap());
        }
        for wrong in ["loop", "a/none"] {
            assert!(none.resolve(&root.join(wrong)).is_err(), "{wrong}");
        }
        // A tree by any of its names.
        let trees = RunWritableTrees::new(&[], Some(root.join("absolute/b").as_path()));
        assert!(trees.resolve(&root.join("a/relative")).is_err());
        assert!(trees.resolve(&root.join("a")).is_ok());
    }
}
