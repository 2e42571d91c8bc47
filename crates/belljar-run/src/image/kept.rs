//! Which files a build was made from, kept in the home, so that the next one can name what changed. Not in
//! the image: names of files that no layer holds would travel with it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use belljar_spec::text::escape;
use serde::{Deserialize, Serialize};

use super::context::Entry;
use super::fingerprint::of_entry;
use crate::config::files::{Links, read};
use belljar_record::home::Home;

const DIRECTORY: &str = "images";
const VERSION: u32 = 1;
/// Of more than this a change is told without names. So many fit into a file that is read whole.
const MOST_FILES: usize = 5_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    v: u32,
    files: BTreeMap<String, String>,
}

impl Kept {
    pub(super) fn of(entries: &[Entry]) -> Self {
        let files = match entries.len() <= MOST_FILES {
            true => entries.iter().map(|entry| (escape(&entry.path), of_entry(entry))).collect(),
            false => BTreeMap::new(),
        };
        Self { v: VERSION, files }
    }

    /// Nothing if it is not there, or makes no sense: then a change has no name.
    pub(super) fn read(home: &Home, fingerprint: &str) -> Option<Self> {
        let file = read(&path(home, fingerprint)?, Links::Refuse).ok()??;
        let kept: Self = serde_json::from_slice(&file.content).ok()?;
        (kept.v == VERSION && !kept.files.is_empty()).then_some(kept)
    }

    /// Whole or not at all.
    pub(super) fn save(&self, home: &Home, fingerprint: &str) -> io::Result<()> {
        let path = path(home, fingerprint).ok_or(io::ErrorKind::InvalidInput)?;
        let directory = home.path().join(DIRECTORY);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let draft = path.with_extension(format!("new.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&draft, path)
    }

    /// Of a build that another one took the name of.
    pub(super) fn forget(home: &Home, fingerprint: &str) {
        if let Some(path) = path(home, fingerprint) {
            let _ = fs::remove_file(path); // nothing depends on it
        }
    }

    /// Paths that are new, gone or other than they were.
    pub(super) fn differences(&self, entries: &[Entry]) -> Vec<String> {
        let now = Self::of(entries).files;
        if now.is_empty() && !entries.is_empty() {
            return Vec::new();
        }
        let changed = now.iter().filter(|(path, hash)| self.files.get(*path) != Some(hash));
        let gone = self.files.keys().filter(|path| !now.contains_key(*path));
        let mut all: Vec<String> = changed.map(|(path, _)| path).chain(gone).cloned().collect();
        all.sort();
        all
    }
}

/// A fingerprint comes from a label, which anybody can have written.
fn path(home: &Home, fingerprint: &str) -> Option<PathBuf> {
    let plain = fingerprint.len() == 64 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| home.path().join(DIRECTORY).join(format!("{fingerprint}.json")))
}
