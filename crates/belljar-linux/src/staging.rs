//! Mounts trees of the host for an engine that binds them by path, as root.
//!
//! Each is mounted in a directory that no other user can change, as the jail would: with its final owner, read-only
//! with everything below, through overlayfs where sockets must not answer. The engine then binds that.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_bind::staging::{
    Offer, STAGING_ROOT, StageError, Staged, StagedMounts, StagingMount, expect, refuse_to_create,
    staged,
};
use belljar_bind::{Bound, BoundKind};
use belljar_spec::{Access, ExpectedMount};
use belljar_sys::mountinfo::MountTable;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::jail::root::{Root, RootError};

/// `None` once it is unmounted.
#[derive(Debug)]
struct MountedStage(Option<PathBuf>);

impl StagingMount for MountedStage {
    fn unmount(mut self: Box<Self>) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |path| remove_mounts(&path))
    }
}

impl Drop for MountedStage {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = remove_mounts(path); // what is left is in reconcile's list
        }
    }
}

/// Removes what a dead launcher left of a run's staging mounts. If there is nothing, that is a success.
pub fn unstage(run: &str) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(()); // never had one, and may not look
    }
    remove_mounts(&Path::new(STAGING_ROOT).join(run))
}

fn remove_mounts(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Not mounted any more, or never was.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Mounts the trees of a bound plan, and puts files for the run beside them.
pub fn stage(bound: Bound, run: &str) -> Result<Staged, StageError> {
    refuse_to_create(&bound)?;
    let made = on_stage(&bound, run)?;
    Ok(staged(bound, made))
}

fn on_stage(bound: &Bound, run: &str) -> Result<StagedMounts, StageError> {
    let path = Path::new(STAGING_ROOT).join(run);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|error| StageError::Make(path.clone(), error))?;
    let stage = MountedStage(Some(path.clone()));
    let failed = |error: RootError| StageError::Mount(Box::new(error));
    let root = Root::at(&path, "0711").map_err(failed)?;
    let (mut offers, mut expected) = (Vec::new(), Vec::new());
    for (number, mount) in bound.mounts.iter().enumerate() {
        let name = number.to_string();
        let read_only = match &mount.kind {
            BoundKind::Tree(tree) => {
                root.add_tree(&Path::new("/").join(&name), tree).map_err(failed)?;
                tree.access == Access::ReadOnly
            }
            BoundKind::File { content } => {
                root.add_file(&Path::new("/").join(&name), content).map_err(failed)?;
                true
            }
            _ => continue, // the engine makes it
        };
        let source = path.join(&name);
        offers.push(Offer {
            source: source.clone(),
            target: mount.target.clone(),
            read_only,
            with_submounts: true,
        });
        expected.extend(seen_below(&source, &mount.target, read_only)?);
    }
    Ok(StagedMounts { offers, expected, stage: Some(Box::new(stage)) })
}

/// The tree and every mount in it, as they are now.
fn seen_below(
    source: &Path,
    target: &Path,
    read_only: bool,
) -> Result<Vec<ExpectedMount>, StageError> {
    let table = MountTable::read()
        .map_err(|error| StageError::Make(PathBuf::from("/proc/self/mountinfo"), error))?;
    let mut all = vec![expect(source, target, read_only)?];
    for point in table.below(source) {
        let relative = point.strip_prefix(source).unwrap_or(Path::new(""));
        let options = table.0.iter().rfind(|line| line.mount_point == point).map(|l| &l.options);
        let is_read_only =
            options.is_some_and(|options| options.split(',').any(|option| option == "ro"));
        let mut below = expect(&point, &target.join(relative), is_read_only)?;
        below.devices = true; // a covered socket is a device
        all.push(below);
    }
    Ok(all)
}
