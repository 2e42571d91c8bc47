//! Stores what `reconcile` needs to find a run's container; written before the container is made.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;

/// In the run's directory, which nothing inside can reach.
const FILE: &str = "sandbox.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) engine: Endpoint,
    pub(super) container: String,
    pub(super) owner: String,
    /// Of this launch alone: an image can claim a run, and not this.
    pub(super) nonce: String,
}

impl Note {
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let temporary = directory.join("sandbox.json.new");
        // Whole or not at all, whatever happens to the machine.
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(temporary, directory.join(FILE))
    }

    /// `None`: the run never came to make one.
    pub(super) fn read(directory: &Path) -> io::Result<Option<Self>> {
        match fs::read(directory.join(FILE)) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
