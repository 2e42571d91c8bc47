//! The tree: many small files in a git repository, as a large project has them.

use std::fs;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bench::identity::Identity;
use crate::command;

pub(crate) const A_DIRECTORY_HAS: usize = 100;
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn path_of(number: usize) -> PathBuf {
    let directory = number / A_DIRECTORY_HAS;
    PathBuf::from(format!("d{}/e{directory}/file{number}.txt", directory / A_DIRECTORY_HAS))
}

pub(crate) fn make(identity: &Identity, root: &Path, files: usize) -> Result<PathBuf> {
    eprintln!("making a tree of {files} files for {}", identity.name);
    for number in 0..files {
        let path = root.join(path_of(number));
        if number % A_DIRECTORY_HAS == 0 {
            let directory = path.parent().context("a file without a directory")?;
            fs::create_dir_all(directory).context("cannot make a directory")?;
        }
        fs::write(path, format!("file {number}\nsecond line\n")).context("cannot make a file")?;
    }
    give(identity, root)?;
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first"],
    ] {
        let mut git = identity.command(Path::new("git"));
        // Nothing that goes on in the background, and moves objects while the tree is copied.
        git.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-C"]).arg(root).args(words);
        command::check(&mut git, LIMIT)?;
    }
    Ok(root.to_owned())
}

fn give(identity: &Identity, path: &Path) -> Result<()> {
    let Some((uid, gid)) = identity.ids() else { return Ok(()) };
    lchown(path, Some(uid), Some(gid)).context("cannot give the tree away")?;
    if path.is_dir() {
        for entry in fs::read_dir(path).context("cannot list the tree")? {
            give(identity, &entry.context("cannot list the tree")?.path())?;
        }
    }
    Ok(())
}

/// Half of them modified, a quarter made, a quarter removed: spread over the tree.
pub(super) fn script(files: usize, changes: usize) -> String {
    let mut lines = vec!["set -e".to_owned()];
    for change in 0..changes {
        let path = path_of(change * (files / changes));
        let path = path.display();
        lines.push(match change % 4 {
            0 | 1 => format!("echo changed >> {path}"),
            2 => format!("echo new > {path}.new"),
            _ => format!("rm {path}"),
        });
    }
    lines.join("\n")
}
