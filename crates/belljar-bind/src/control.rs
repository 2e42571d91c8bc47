//! Files of a writable tree that the host executes: existing ones are read-only inside.
//!
//! Nothing is put into the tree for missing ones: a run can make them, and that is reported at its end.

use std::path::{Path, PathBuf};

use belljar_spec::{HostPaths, OsText, WritableTree};

use crate::bind::BindError;
use crate::resolve::{ResolveError, resolve};
use crate::survey::survey;

/// What of a tree has to be covered read-only.
#[derive(Debug)]
pub(super) struct Protected {
    /// Relative paths.
    pub(super) paths: Vec<PathBuf>,
    /// Control files that are there, those that may be written among them.
    pub(super) control: Vec<PathBuf>,
    /// The tree was too large to check all of it.
    pub(super) cut: bool,
}

pub(super) fn protected(
    tree: &Path,
    allowed: &[OsText],
    place: &HostPaths,
) -> Result<Protected, BindError> {
    let allowed: Vec<PathBuf> = allowed
        .iter()
        .map(|allowed| without_links(allowed.as_path(), &place.run_writable))
        .collect::<Result<_, _>>()?;
    let is_allowed = |path: &Path| {
        let whole = tree.join(path);
        allowed.iter().any(|allowed| whole.starts_with(allowed))
    };
    let found = survey(tree);
    let control = found.control;
    let mut paths = control.clone();
    paths.retain(|path| !is_allowed(path));
    paths.extend(found.privileged);
    Ok(Protected { paths, control, cut: found.cut })
}

/// In the form of the trees' paths. The last names may not exist yet.
fn without_links(path: &Path, run_writable: &[WritableTree]) -> Result<PathBuf, ResolveError> {
    for above in path.ancestors().skip(1) {
        match resolve(above, run_writable) {
            Ok(there) => {
                let rest = path.strip_prefix(above).unwrap_or(path);
                return Ok(there.path.join(rest));
            }
            Err(ResolveError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(path.to_owned())
}
