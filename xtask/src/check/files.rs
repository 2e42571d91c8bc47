//! Lists the files of the checkout. Without git, which a new machine does not have yet.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directories that hold no source, in any place.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// Every regular file below `root`, relative to it, sorted.
pub(super) fn below(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        let path = root.join(&directory);
        let entries = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", path.display()))?;
            let kind = entry.file_type().with_context(|| format!("in {}", path.display()))?;
            let name = directory.join(entry.file_name());
            if kind.is_dir() && !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                open.push(name);
            } else if kind.is_file() {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn read(root: &Path, file: &Path) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
}

pub(super) fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found == extension)
}
