//! Checks that what was staged is what arrived in the tree.
//!
//! The staging directory lies in a tree that another run may be allowed to write. So what counts is the content that
//! was read from the run, and it is compared with what the tree holds once it is there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{Dir, OpenDirError, OpenFileError};
use rustix::io::Errno;

use crate::fingerprint::Fingerprint;

/// A larger file is known by its inode and its times alone.
const MAX_HASHED: u64 = 64 << 20;

/// One entry that was staged.
#[derive(Debug)]
pub(super) struct Staged {
    /// Relative to what is moved in one step; empty: that itself.
    pub(super) path: PathBuf,
    pub(super) print: Fingerprint,
    pub(super) content: StagedContent,
}

#[derive(Debug)]
pub(super) enum StagedContent {
    Hash([u8; 32]),
    /// Too large to be read again.
    Large,
    Target(OsText),
    Directory,
}

impl StagedContent {
    pub(super) fn of_text(text: &[u8]) -> Self {
        Self::Hash(*blake3::hash(text).as_bytes())
    }

    pub(super) fn of_file(file: &File, size: u64) -> io::Result<Self> {
        if size > MAX_HASHED {
            return Ok(Self::Large);
        }
        let mut hasher = blake3::Hasher::new();
        let mut reader = file;
        io::copy(&mut Read::by_ref(&mut reader).take(MAX_HASHED + 1), &mut hasher)?;
        Ok(Self::Hash(*hasher.finalize().as_bytes()))
    }
}

/// Whether everything that was staged lies at this name, and nothing else.
pub(super) fn has_come(
    parent: &Dir,
    name: &std::ffi::OsStr,
    staged: &[Staged],
) -> Result<bool, Errno> {
    let mut counts: HashMap<&Path, usize> = HashMap::new();
    for one in staged {
        if let Some(above) = one.path.parent() {
            *counts.entry(above).or_default() += 1;
        }
    }
    for one in staged {
        let is_top = one.path.as_os_str().is_empty();
        let path = if is_top { PathBuf::from(name) } else { Path::new(name).join(&one.path) };
        let found = match parent.stat(&path) {
            // The directory's own fingerprint has to do.
            Err(error) if !is_top && error.errno() == Errno::ACCESS => continue,
            found => Fingerprint::of(&found?),
        };
        let same = match is_top {
            true => one.print.is_same_content(&found), // it was renamed
            false => one.print == found,
        };
        if !same || !has_content(parent, &path, one, &counts)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_content(
    parent: &Dir,
    path: &Path,
    one: &Staged,
    counts: &HashMap<&Path, usize>,
) -> Result<bool, Errno> {
    match &one.content {
        StagedContent::Large => Ok(true),
        StagedContent::Target(target) => {
            Ok(parent.read_link(path)?.as_encoded_bytes() == target.as_bytes())
        }
        StagedContent::Hash(hash) => match parent.open_file(path) {
            // Its mode forbids it to others as well.
            Err(OpenFileError::System { error: Errno::ACCESS, .. }) => Ok(true),
            Err(OpenFileError::NotRegular { .. }) => Ok(false),
            file => match StagedContent::of_file(&file?, one.print.size) {
                Ok(StagedContent::Hash(found)) => Ok(found == *hash),
                Ok(_) | Err(_) => Ok(false),
            },
        },
        StagedContent::Directory => {
            let opened = match parent.open_dir(path) {
                Err(OpenDirError::System { error: Errno::ACCESS, .. }) => return Ok(true),
                opened => opened?,
            };
            let expected = counts.get(one.path.as_path()).copied().unwrap_or_default();
            let entries = opened.into_entries()?.collect::<Result<Vec<_>, _>>()?;
            Ok(entries.len() == expected)
        }
    }
}
