//! Opens the place on the host that a copy goes to, so that nothing moves it under the copy.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, resolve};
use belljar_spec::{OsText, WritableTree};
use belljar_tree::{Access, Dir};
use rustix::io::Errno;

use super::CopyError;

/// Whether missing directories above the target are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingParents {
    #[default]
    Refuse,
    Make,
}

/// The directory that a copy is made in, and its name there.
#[derive(Debug)]
pub struct CopyTarget {
    pub(super) parent: Dir,
    pub(super) parent_path: PathBuf,
    pub(super) name: OsString,
    made: MadeDirectories,
}

impl CopyTarget {
    /// With docker's rules: an existing directory receives the copy under `name`, which is the source's.
    ///
    /// `run_writable`: trees in which no link is followed, since a run can have planted it.
    pub fn open(
        target: &Path,
        name: Option<&OsStr>,
        run_writable: &[WritableTree],
        parents: MissingParents,
    ) -> Result<Self, CopyError> {
        let no_name = || CopyError::NoName { path: target.into() };
        let whole = std::path::absolute(target).map_err(|error| CopyError::Io {
            what: "find",
            path: target.into(),
            error,
        })?;
        match resolve(&whole, run_writable) {
            Ok(found) if found.is_directory() => {
                let name = name.ok_or_else(no_name)?.to_owned();
                let parent = listable(Dir::from_lookup_fd(found.fd), target)?;
                let made = MadeDirectories::default();
                return Ok(Self { parent, parent_path: target.to_owned(), name, made });
            }
            Ok(_) | Err(ResolveError::Missing { .. }) => {}
            Err(error) => return Err(CopyError::Target(Box::new(error))),
        }
        if target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(no_name()); // the directory does not exist
        }
        let name = target.file_name().ok_or_else(no_name)?.to_owned();
        let parent_path = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent_path = parent_path.unwrap_or(Path::new(".")).to_owned();
        let above = whole.parent().unwrap_or(Path::new("/"));
        let (parent, made) = open_parent(above, run_writable, parents)?;
        Ok(Self { parent, parent_path, name, made })
    }

    /// The copy is in place: what was made for it stays.
    pub(super) fn keep(&mut self) {
        self.made.names.clear();
    }
}

/// The directory at `path`. Missing ones are made in the nearest that exists, by descriptor.
fn open_parent(
    path: &Path,
    run_writable: &[WritableTree],
    parents: MissingParents,
) -> Result<(Dir, MadeDirectories), CopyError> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut at = path;
    let found = loop {
        match (resolve(at, run_writable), parents) {
            (Err(ResolveError::Missing { .. }), MissingParents::Make) => {
                let (Some(above), Some(name)) = (at.parent(), at.file_name()) else {
                    return Err(CopyError::NoName { path: path.into() });
                };
                missing.push(name);
                at = above;
            }
            (found, _) => break found.map_err(|error| CopyError::Target(Box::new(error)))?,
        }
    };
    if !found.is_directory() {
        return Err(failed("open the directory", at)(Errno::NOTDIR));
    }
    let mut here = listable(Dir::from_lookup_fd(found.fd), at)?;
    let mut made = MadeDirectories::default();
    for name in missing.into_iter().rev() {
        let make = failed("make the directory", path);
        let below = here
            .create_dir(name, 0o777)
            .map_err(|error| error.errno())
            .and_then(|()| here.open_dir(name).map_err(|error| error.errno()))
            .map_err(make)?;
        made.names.push((std::mem::replace(&mut here, below), name.to_owned()));
    }
    Ok((here, made))
}

fn listable(lookup: Dir, path: &Path) -> Result<Dir, CopyError> {
    lookup.open_dir_for(".", Access::List).map_err(|error| failed("open", path)(error.errno()))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> CopyError {
    let path = OsText::from(path);
    move |errno| CopyError::Io { what, path, error: errno.into() }
}

/// Directories that were made for a copy; removed again if it fails and they are empty.
#[derive(Debug, Default)]
struct MadeDirectories {
    /// Each with the directory that it is in, outermost first.
    names: Vec<(Dir, OsString)>,
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for (parent, name) in self.names.iter().rev() {
            let _ = parent.remove_dir(name); // another program has put something there
        }
    }
}
