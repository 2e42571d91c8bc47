//! Carries a checkpoint of one run over to the beginning of another.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use belljar_bind::snapshot;

use super::{CheckpointError, HOME, Pin, pin};
use crate::{BASE, read_layers};

/// The index of a tree's notes; the texts that it names lie beside it.
const INDEX: &str = "index.json";

/// `home` is there and empty. From then on it holds what a run put there: no path in it is to be trusted.
/// For as long as what is returned is held, the checkpoint stays: its layers are still to be read.
pub fn restore_home(checkpoint: &Path, home: &Path) -> Result<Pin, CheckpointError> {
    let pinned = pin(checkpoint)?;
    let restored = snapshot::restore(&checkpoint.join(HOME), home);
    restored
        .map(|_| pinned)
        .map_err(|error| CheckpointError::Restore { path: checkpoint.to_owned(), error })
}

/// Takes over what the older run saw of the real trees, so that a change of another process since then is found. Both
/// runs have their layers written down, the same trees in the same order.
pub fn carry_base(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    let carried = || -> io::Result<()> {
        let (old, new) = (read_layers(from)?, read_layers(to)?);
        if old.len() != new.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the trees are not the same"));
        }
        for (old, new) in old.iter().zip(&new) {
            let place = |run: &Path, number: u32| run.join(BASE).join(number.to_string());
            carry_tree(&place(from, old.number), &place(to, new.number))?;
        }
        Ok(())
    };
    carried().map_err(|error| CheckpointError::Base { path: from.to_owned(), error })
}

fn carry_tree(from: &Path, to: &Path) -> io::Result<()> {
    // First: it names only texts that are there by then, and a later one may name more.
    let index = match fs::read(from.join(INDEX)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        index => index?,
    };
    DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let is_text = name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if is_text {
            fs::copy(from.join(&name), to.join(&name))?; // never linked: a number can be written anew
        }
    }
    let draft = to.join("index.draft");
    fs::write(&draft, index)?;
    fs::rename(draft, to.join(INDEX))
}
