//! Covers other names of files that are read-only inside: through a second hard link in a tree that the run may write,
//! the same file could be changed all the same.
//!
//! Every name in the tree is covered, too. Names outside the run's trees cannot be reached by it, and are left alone:
//! backups and package stores link files of a project by the thousand. If not every name was found because a tree is
//! too large to walk, or one is in another writable tree of the run, the run does not start.

use std::collections::HashMap;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::bind::BindError;

/// Names checked, in total. Only trees with such files in them are walked.
const MAX_NAMES: usize = 1_000_000;

/// A file with several names, by device and inode.
type Files = HashMap<(u64, u64), LinkedFile>;

struct LinkedFile {
    /// Where it was found first, whole.
    path: PathBuf,
    links: u64,
    /// In this tree, relative.
    names: Vec<PathBuf>,
}

/// All other names, in `tree`, of what is covered there. `covered`: files and whole directories, relative; `others`: the
/// other trees that the run may write.
pub(super) fn other_names(
    tree: &Path,
    covered: &[PathBuf],
    others: &[PathBuf],
) -> Result<Vec<PathBuf>, BindError> {
    let mut left = MAX_NAMES;
    let mut files = Files::new();
    for path in covered {
        note_linked(&tree.join(path), &mut files, &mut left);
    }
    if left == 0 {
        return Err(BindError::TooManyCovered { path: tree.to_owned() });
    }
    if files.is_empty() {
        return Ok(Vec::new());
    }
    look_for(tree, tree, &mut files, &mut left);
    let found_in_tree: HashMap<(u64, u64), usize> =
        files.iter().map(|(id, file)| (*id, file.names.len())).collect();
    for other in others.iter().filter(|other| !other.starts_with(tree)) {
        look_for(other, other, &mut files, &mut left);
    }
    // A tree in this one that is mounted by itself shows the same names once more, where nothing covers them.
    let nested: Vec<&PathBuf> =
        others.iter().filter(|other| other.starts_with(tree) && *other != tree).collect();
    let is_covered = |name: &PathBuf| covered.iter().any(|covered| name.starts_with(covered));
    let is_shown_twice = |name: &PathBuf| {
        let whole = tree.join(name);
        !is_covered(name) && nested.iter().any(|other| whole.starts_with(other))
    };
    for (id, file) in &files {
        let elsewhere = file.names.len() > found_in_tree.get(id).copied().unwrap_or(0)
            || file.names.iter().any(is_shown_twice);
        let is_unsure = left == 0 && (file.names.len() as u64) < file.links;
        if elsewhere || is_unsure {
            let (path, links) = (file.path.clone(), file.links);
            return Err(BindError::LinkedControl { path, links });
        }
    }
    let mut names: Vec<PathBuf> = files.into_values().flat_map(|file| file.names).collect();
    names.retain(|name| !covered.iter().any(|covered| name.starts_with(covered)));
    names.sort();
    Ok(names)
}

/// The files with several names that a path is or holds.
fn note_linked(path: &Path, files: &mut Files, left: &mut usize) {
    let mut todo = vec![path.to_owned()];
    while let Some(path) = todo.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_file() && meta.nlink() > 1 {
            let id = (meta.dev(), meta.ino());
            let links = meta.nlink();
            files.entry(id).or_insert(LinkedFile { path, links, names: Vec::new() });
        } else if meta.is_dir() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                if *left == 0 {
                    return;
                }
                *left -= 1;
                todo.push(entry.path());
            }
        }
    }
}

fn look_for(tree: &Path, directory: &Path, files: &mut Files, left: &mut usize) {
    let mut todo = vec![directory.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file()
                && files.keys().any(|(_, inode)| *inode == entry.ino())
                && let Ok(meta) = entry.metadata()
                && let Some(file) = files.get_mut(&(meta.dev(), meta.ino()))
                && let Ok(relative) = entry.path().strip_prefix(tree)
            {
                file.names.push(relative.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_name_in_the_tree_is_found_and_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join(".git/hooks")).unwrap();
        fs::create_dir_all(tree.join("scripts/deep")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(tree.join(".envrc"), "").unwrap();
        fs::write(tree.join(".git/hooks/pre-commit"), "").unwrap();
        fs::write(tree.join("plain"), "").unwrap();
        let covered = [PathBuf::from(".envrc"), PathBuf::from(".git/hooks")];
        assert_eq!(other_names(&tree, &covered, &[]).unwrap(), [] as [PathBuf; 0]);
        fs::hard_link(tree.join("plain"), tree.join("plain-too")).unwrap();
        fs::hard_link(tree.join(".envrc"), tree.join("scripts/deep/env")).unwrap();
        fs::hard_link(tree.join(".git/hooks/pre-commit"), tree.join("scripts/hook")).unwrap();
        fs::hard_link(tree.join(".git/hooks/pre-commit"), tree.join(".git/hooks/too")).unwrap();
        fs::hard_link(tree.join(".envrc"), outside.join("backup")).unwrap();
        let names = other_names(&tree, &covered, std::slice::from_ref(&tree)).unwrap();
        assert_eq!(names, [PathBuf::from("scripts/deep/env"), PathBuf::from("scripts/hook")]);
        // One of the names is in a tree that is mounted by itself, too.
        let nested = tree.join("scripts");
        let refused = other_names(&tree, &covered, &[tree.clone(), nested]);
        assert!(matches!(refused, Err(BindError::LinkedControl { .. })), "{refused:?}");
        let refused = other_names(&tree, &covered, &[tree.clone(), outside]);
        assert!(matches!(refused, Err(BindError::LinkedControl { links: 3, .. })), "{refused:?}");
    }
}
