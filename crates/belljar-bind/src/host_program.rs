//! Finds the programs of the host that Belljar starts.
//!
//! Only absolute entries of `PATH` count, and a program in a tree that a run could write is
//! skipped: a run may have put it there, and it would execute on the host.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_spec::WritableTree;

use crate::resolve::resolve;

type TreeSource = Box<dyn Fn() -> io::Result<Vec<WritableTree>> + Send + Sync>;

static WRITABLE_TREES: OnceLock<TreeSource> = OnceLock::new();

/// Where programs are searched while the trees that a run could write are not known.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sets the source of the trees that a run could write; queried when a program is searched. The first
/// one counts.
pub fn set_writable_trees(
    source: impl Fn() -> io::Result<Vec<WritableTree>> + Send + Sync + 'static,
) {
    let _ = WRITABLE_TREES.set(Box::new(source)); // a second home in one process: the first counts
}

/// The trees that a run could write; none until their source is set.
pub fn writable_trees() -> io::Result<Vec<WritableTree>> {
    WRITABLE_TREES.get().map_or_else(|| Ok(Vec::new()), |source| source())
}

/// The program by this name, by its path without links.
pub fn find(name: impl AsRef<OsStr>) -> io::Result<PathBuf> {
    let name = name.as_ref();
    match WRITABLE_TREES.get() {
        Some(trees) => {
            let path = std::env::var_os("PATH").unwrap_or_else(|| SYSTEM_PATH.into());
            find_on(name, &path, &trees()?)
        }
        None => find_on(name, &OsString::from(SYSTEM_PATH), &[]),
    }
}

/// The entries of `PATH` that a program of the host may search itself: for its environment.
pub fn clean_path() -> OsString {
    let Some(trees) = WRITABLE_TREES.get() else { return SYSTEM_PATH.into() };
    let Ok(trees) = trees() else { return SYSTEM_PATH.into() };
    let path = std::env::var_os("PATH").unwrap_or_else(|| SYSTEM_PATH.into());
    let is_clean = |entry: &PathBuf| {
        entry.is_absolute() && resolve(entry, &trees).is_ok_and(|found| found.written_in.is_none())
    };
    let clean = std::env::split_paths(&path).filter(is_clean);
    std::env::join_paths(clean).unwrap_or_else(|_| SYSTEM_PATH.into())
}

/// Whether a directory is one that a run could write. What cannot be found out counts as one.
pub fn is_writable_by_runs(directory: &Path) -> bool {
    let found = writable_trees().map(|trees| resolve(directory, &trees));
    !matches!(found, Ok(Ok(found)) if found.written_in.is_none())
}

/// A name with a slash is a path, and has to be absolute.
pub fn find_on(name: &OsStr, path: &OsStr, trees: &[WritableTree]) -> io::Result<PathBuf> {
    let not_found = |why: String| Err(io::Error::new(io::ErrorKind::NotFound, why));
    let shown = Path::new(name).display();
    if Path::new(name).components().count() != 1 || Path::new(name).is_absolute() {
        if !Path::new(name).is_absolute() {
            return not_found(format!("{shown} is not an absolute path"));
        }
        return check(Path::new(name), trees).or_else(|why| not_found(format!("{shown} {why}")));
    }
    let mut skipped = String::new();
    for directory in std::env::split_paths(path).filter(|directory| directory.is_absolute()) {
        match check(&directory.join(name), trees) {
            Ok(program) => return Ok(program),
            Err(Rejected::Missing) => {}
            Err(why) => {
                skipped.push_str(&format!("; {} {why}", directory.join(name).display()));
            }
        }
    }
    not_found(format!("there is no program {shown} in the absolute entries of PATH{skipped}"))
}

enum Rejected {
    Missing,
    Written(PathBuf),
    NoProgram,
    Failed(String),
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Written(tree) => {
                write!(f, "is skipped: it is in {}, where a run can write", tree.display())
            }
            Self::NoProgram => f.write_str("is not a program"),
            Self::Failed(why) => write!(f, "is skipped: {why}"),
        }
    }
}

fn check(path: &Path, trees: &[WritableTree]) -> Result<PathBuf, Rejected> {
    let found = match resolve(path, trees) {
        Ok(found) => found,
        Err(crate::resolve::ResolveError::Missing { .. }) => return Err(Rejected::Missing),
        Err(error) => return Err(Rejected::Failed(error.to_string())),
    };
    if let Some(tree) = found.written_in {
        return Err(Rejected::Written(tree));
    }
    match std::fs::metadata(&found.path) {
        Ok(facts) if facts.is_file() && facts.permissions().mode() & 0o111 != 0 => Ok(found.path),
        _ => Err(Rejected::NoProgram),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn program(directory: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn only_absolute_entries_outside_of_what_runs_write() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        let planted = program(&base.join("work/bin"), "helper");
        let real = program(&base.join("bin"), "helper");
        let trees = [WritableTree::by_path(base.join("work"))];
        let path = std::env::join_paths([base.join("work/bin"), base.join("bin")]).unwrap();
        let find = |path: &OsStr, trees: &[WritableTree]| find_on("helper".as_ref(), path, trees);
        // Control: without the knowledge the first one is taken.
        assert_eq!(find(&path, &[]).unwrap(), planted);
        assert_eq!(find(&path, &trees).unwrap(), real);
        assert!(find(planted.parent().unwrap().as_os_str(), &trees).is_err());
        // A link of the operator's that leads there.
        fs::create_dir(base.join("links")).unwrap();
        std::os::unix::fs::symlink(&planted, base.join("links/helper")).unwrap();
        assert!(find(base.join("links").as_os_str(), &trees).is_err());
        assert_eq!(find(base.join("links").as_os_str(), &[]).unwrap(), planted);
    }

    #[test]
    fn a_relative_entry_never_counts() {
        for path in [".", "", "bin", "./bin", "..:."] {
            assert!(find_on("sh".as_ref(), path.as_ref(), &[]).is_err(), "{path}");
        }
        assert!(find_on("sh".as_ref(), ".:/bin".as_ref(), &[]).is_ok());
        assert!(find_on("./sh".as_ref(), "/bin".as_ref(), &[]).is_err());
        assert!(find_on("/bin/sh".as_ref(), "".as_ref(), &[]).is_ok());
    }
}
