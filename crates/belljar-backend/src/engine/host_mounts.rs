//! Prepares the trees that a container is given. Root mounts them first, which takes the jail's code; everyone else
//! names their paths.

use std::path::Path;

use belljar_bind::staging::{self, StageError, Staged};
use belljar_bind::{BindError, Bound};
use belljar_spec::{HostPaths, Plan};

use crate::error::Unavailable;

#[cfg(feature = "jail")]
pub(super) fn bind(plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
    belljar_bind::bind(plan, place, belljar_linux::jail::mounts())
}

#[cfg(not(feature = "jail"))]
pub(super) fn bind(plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
    belljar_bind::bind(plan, place, belljar_bind::Mounts::ByPath)
}

/// Where files for the run are put: for root into the staging mount, for others into this directory.
#[cfg(feature = "jail")]
pub(super) fn stage(bound: Bound, run: &str, files: &Path) -> Result<Staged, StageError> {
    match rustix::process::geteuid().is_root() {
        true => belljar_linux::staging::stage(bound, run),
        false => staging::stage_in_place(bound, files),
    }
}

#[cfg(not(feature = "jail"))]
pub(super) fn stage(bound: Bound, _: &str, files: &Path) -> Result<Staged, StageError> {
    staging::stage_in_place(bound, files)
}

/// Removes what a dead launcher left mounted for a run.
#[cfg(feature = "jail")]
pub(super) fn unstage(run: &str) -> std::io::Result<()> {
    belljar_linux::staging::unstage(run)
}

/// Without the jail's code nothing is ever mounted.
#[cfg(not(feature = "jail"))]
pub(super) fn unstage(_: &str) -> std::io::Result<()> {
    Ok(())
}

/// Whether this process can start containers on this machine's engine.
#[cfg(feature = "jail")]
pub(super) fn check_caller() -> Result<(), Unavailable> {
    Ok(())
}

/// Root's containers have ids of their own, and trees belong to others: without mounts that translate owners they
/// could only run as root.
#[cfg(not(feature = "jail"))]
pub(super) fn check_caller() -> Result<(), Unavailable> {
    if rustix::process::geteuid().is_root() {
        let why =
            "this build of belljar has no jail, whose code mounts the trees of root's containers";
        let fix = "start belljar as an ordinary user, or use a build with the jail";
        return Err(Unavailable::new(why, fix));
    }
    Ok(())
}
