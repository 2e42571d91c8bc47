//! Where an application stages its files: on the tree's own file system, so that a rename puts them in place, and out of
//! reach of every run.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_spec::{OsText, RunId};
use belljar_tree::{Dir, FinalLink};
use rustix::fs::{Access, AtFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::ApplyError;
use super::at_end::is_written_at_end;
use belljar_record::home::Home;
use belljar_record::run_json::written_trees;
use belljar_record::store::{self, Life, life};

/// What runs that live now can write.
pub(super) struct LiveWriters(Vec<(RunId, Option<Vec<PathBuf>>)>);

impl LiveWriters {
    pub(super) fn now(home: &Home) -> std::io::Result<Self> {
        let live = store::live_ids(home)?;
        let live = live.into_iter().filter(|run| matches!(life::of(home, run), Life::Live(_)));
        let trees_of = |run: &RunId| {
            let directory = home.run_dir(run);
            let mut trees = written_trees(&directory)?;
            trees.retain(|tree| !is_written_at_end(&directory, tree));
            Some(trees)
        };
        Ok(Self(live.map(|run| (run, trees_of(&run))).collect()))
    }

    /// A run that can write in the directory. One that has just begun could write anywhere.
    fn of(&self, directory: &Path) -> Option<RunId> {
        let can_write = |trees: &Option<Vec<PathBuf>>| match trees {
            None => true,
            Some(trees) => trees.iter().any(|tree| directory.starts_with(tree)),
        };
        self.0.iter().find(|(_, trees)| can_write(trees)).map(|(run, _)| *run)
    }
}

/// The directory that holds the staging directory; `None`: the tree's root.
pub(super) fn choose(
    home: &Home,
    root: &Dir,
    path: &OsText,
    writers: &LiveWriters,
) -> Result<Option<OsText>, ApplyError> {
    let failed = |errno: Errno| ApplyError::Staging { root: path.clone(), error: errno.into() };
    let mount = mount_of(root).map_err(failed)?;
    let is_same_mount = |directory: &Path| {
        let opened = Dir::open(directory, FinalLink::Refuse).map_err(Errno::from);
        opened.and_then(|opened| mount_of(&opened)).is_ok_and(|found| found == mount)
    };
    // No run ever sees the home.
    let applying = home.applying();
    if is_same_mount(&applying) {
        return Ok(Some(applying.into()));
    }
    if let Some(parent) = path.as_path().parent()
        && is_same_mount(parent)
        && rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && writers.of(parent).is_none()
    {
        return Ok(Some(parent.into()));
    }
    match writers.of(path.as_path()) {
        None => Ok(None),
        Some(run) => Err(ApplyError::OtherWriter { root: path.clone(), run }),
    }
}

/// A rename works within one mount only.
fn mount_of(dir: &Dir) -> Result<(u32, u32, u64), Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = statx(dir.as_fd(), "", AtFlags::EMPTY_PATH, wanted)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_mnt_id))
}
