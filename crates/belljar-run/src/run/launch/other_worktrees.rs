//! Keeps a run from writing what its repository has for other worktrees, where the repository is mounted writable.
//!
//! They are looked up when the run is bound, because a run that is started again may find others. Without them what they
//! alone refer to would look unused to `git gc` inside; so they are there, and read-only.

use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::git_worktrees::WORKTREES;
use belljar_spec::{Access, GitDirectory, MountKind, OsText, Plan, Source};

/// Each is a mount.
const MAX_SHIELDED: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum OtherWorktreesError {
    #[error(
        "cannot list {path}, which has the data of other worktrees; to run without git's data: -c sandbox.git=off"
    )]
    Unreadable {
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error(
        "{path} has more than {MAX_SHIELDED} names that belong to other worktrees; use an overlay workspace, or \
         remove what is not needed (git worktree prune); to run without git's data: -c sandbox.git=off"
    )]
    TooMany { path: OsText },
}

pub(super) fn shield(plan: &mut Plan, git: &GitDirectory) -> Result<(), OtherWorktreesError> {
    let is_writable = plan.mounts.iter().any(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, access: Access::Writable, .. } => {
            *path == git.path
        }
        _ => false,
    });
    if is_writable {
        plan.shielded.extend(others_in(git, MAX_SHIELDED)?);
    }
    Ok(())
}

/// What is at the top and below `worktrees`, but for what is the run's or shared.
fn others_in(git: &GitDirectory, most: usize) -> Result<Vec<OsText>, OtherWorktreesError> {
    let mut others = Vec::new();
    for inside in [Path::new(""), Path::new(WORKTREES)] {
        let directory = git.path.as_path().join(inside);
        let unreadable = |error| OtherWorktreesError::Unreadable {
            path: OsText::from(directory.as_path()),
            error,
        };
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(unreadable)?,
        };
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let kind = entry.file_type().map_err(unreadable)?;
            let counts = kind.is_dir() || kind.is_file() || kind.is_symlink();
            if !counts || !git.part.is_of_another(&inside.join(entry.file_name())) {
                continue;
            }
            if others.len() == most {
                return Err(OtherWorktreesError::TooMany { path: git.path.clone() });
            }
            others.push(entry.path());
        }
    }
    others.sort();
    Ok(others.into_iter().map(|path: PathBuf| OsText::from(path)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use belljar_spec::GitPart;

    use super::*;

    fn repository(files: &[&str]) -> (tempfile::TempDir, GitDirectory) {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let git = GitDirectory {
            link: "/w/.git".into(),
            link_hash: String::new(),
            path: directory.path().into(),
            part: GitPart::Linked { name: "own".into() },
        };
        (directory, git)
    }

    fn names(git: &GitDirectory, most: usize) -> Vec<String> {
        let others = others_in(git, most).unwrap();
        let inside =
            |path: &OsText| path.as_path().strip_prefix(git.path.as_path()).unwrap().to_owned();
        others.iter().map(|path| inside(path).to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_main_worktree_is_another_one_and_what_all_share_is_none() {
        let files = ["HEAD", "index", "config", "objects/x", "refs/heads/x", "rebase-merge/x"];
        let (_directory, mut git) = repository(&files);
        for linked in ["own", "other", "third"] {
            let path = git.path.as_path().join(WORKTREES).join(linked);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("HEAD"), "x").unwrap();
        }
        let linked = ["worktrees/other", "worktrees/third"];
        let expected: Vec<&str> =
            ["HEAD", "index", "rebase-merge"].into_iter().chain(linked).collect();
        assert_eq!(names(&git, 5), expected);
        git.part = GitPart::Main;
        assert_eq!(names(&git, 5), ["worktrees/other", "worktrees/own", "worktrees/third"]);
    }

    #[test]
    fn only_what_counts_is_counted_and_too_many_are_refused() {
        let (_directory, git) = repository(&["HEAD", "refs/x", "objects/x", "worktrees/own/HEAD"]);
        for at in 0..20 {
            fs::write(git.path.as_path().join(format!("worktrees/own/{at}")), "x").unwrap();
        }
        assert_eq!(names(&git, 1), ["HEAD"], "the control");
        fs::create_dir(git.path.as_path().join("worktrees/other")).unwrap();
        assert!(matches!(others_in(&git, 1), Err(OtherWorktreesError::TooMany { .. })));
    }
}
