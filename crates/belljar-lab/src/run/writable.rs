//! The trees that a run could ever write. A link in one of them may have been planted, so it is never
//! followed when a later run is given something.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::home::Home;

/// Paths, each ended by a NUL byte: a name can hold a newline.
fn file(home: &Home) -> PathBuf {
    home.path().join("writable-trees")
}

pub(crate) fn known(home: &Home) -> std::io::Result<Vec<PathBuf>> {
    let list = match std::fs::read(file(home)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list?,
    };
    let paths = list.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()))).collect())
}

/// Before the run that can write there starts.
pub(super) fn remember(home: &Home, known: &[PathBuf], trees: &[PathBuf]) -> std::io::Result<()> {
    let new: Vec<u8> = trees
        .iter()
        .filter(|tree| !known.contains(tree))
        .flat_map(|tree| tree.as_os_str().as_bytes().iter().copied().chain([0]))
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    // One append of whole entries: two launchers at once do not mix theirs.
    OpenOptions::new().create(true).append(true).mode(0o600).open(file(home))?.write_all(&new)
}
