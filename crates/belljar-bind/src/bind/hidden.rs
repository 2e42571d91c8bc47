//! Finds which tree each hidden name is in.

use std::path::PathBuf;

use belljar_spec::{HostPaths, Plan, TreeAccess};

use super::{BindError, Binder, Layer, Via};
use crate::resolve::{ResolveError, Resolved, resolve};

/// The plan's names, with links resolved, as in the trees' paths.
pub(super) fn resolve_all(plan: &Plan, place: &HostPaths) -> Result<Vec<PathBuf>, BindError> {
    let mut all = Vec::new();
    for hidden in &plan.hidden {
        let path = hidden.as_path();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        match resolve(parent, &place.run_writable) {
            Ok(parent) => all.push(parent.path.join(name)),
            Err(ResolveError::Missing { .. }) => {} // so it is not there either
            Err(error) => return Err(error.into()),
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

impl Binder<'_> {
    /// What of a tree is hidden, relative to it.
    pub(super) fn hidden_in(&self, source: &Resolved, via: Via) -> Result<Vec<PathBuf>, BindError> {
        if let Some(hidden) = self.hidden.iter().find(|hidden| source.path.starts_with(hidden)) {
            let (path, hidden) = (source.path.clone(), hidden.clone());
            return Err(BindError::HiddenSource { path, hidden });
        }
        let relative = |hidden: &PathBuf| Some(hidden.strip_prefix(&source.path).ok()?.to_owned());
        let mut names: Vec<PathBuf> = self.hidden.iter().filter_map(relative).collect();
        if via != Via::Bind && !self.covers_by_engine() {
            return Ok(names);
        }
        // A cover is put on what is there, and never through a link.
        names.retain(|name| source.path.join(name).symlink_metadata().is_ok());
        for name in &names {
            let path = source.path.join(name);
            if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_symlink()) {
                return Err(BindError::HiddenLink { path });
            }
        }
        Ok(names)
    }

    /// An ordinary user's engine binds trees as they are.
    pub(super) fn covers_by_engine(&self) -> bool {
        let is_engine = self.plan.backend.features().trees == TreeAccess::MountedByEngine;
        is_engine && !self.mounts.are_by_root()
    }
}

/// Sets for each layer which of the names are in it.
pub(super) fn leave_out(
    hidden: &[PathBuf],
    via: Via,
    layer: &mut Layer,
    submounts: &mut [(PathBuf, Layer)],
) {
    if via == Via::Bind {
        return;
    }
    for name in hidden {
        let holds = |(point, _): &&mut (PathBuf, Layer)| name.starts_with(point) && name != point;
        let nearest =
            submounts.iter_mut().filter(holds).max_by_key(|(point, _)| point.components().count());
        match nearest {
            Some((point, below)) => {
                let relative = name.strip_prefix(point.as_path()).unwrap_or(name);
                below.left_out.push(relative.to_owned());
            }
            None => layer.left_out.push(name.clone()),
        }
    }
}
