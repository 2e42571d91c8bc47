//! Stores the file hashes of a build in the home, so that the next build can name the files that changed. They are not
//! stored in the image, which would reveal the names of files that are not part of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use belljar_spec::text::escape;
use serde::{Deserialize, Serialize};

use super::context::ContextEntry;
use super::fingerprint::entry_hash;
use crate::config::files::{Links, read};
use belljar_record::home::Home;

const DIRECTORY: &str = "builds";
const VERSION: u32 = 1;
/// With more files, a change is reported without names. This many fit into a file that is read at once.
const MAX_FILES: usize = 5_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BuildRecord {
    v: u32,
    files: BTreeMap<String, String>,
}

impl BuildRecord {
    pub(super) fn of(entries: &[ContextEntry]) -> Self {
        let files = match entries.len() <= MAX_FILES {
            true => entries.iter().map(|entry| (escape(&entry.path), entry_hash(entry))).collect(),
            false => BTreeMap::new(),
        };
        Self { v: VERSION, files }
    }

    /// `None` if it is missing or damaged: then a change is reported without names.
    pub(super) fn read(home: &Home, fingerprint: &str) -> Option<Self> {
        let file = read(&path(home, fingerprint)?, Links::Refuse).ok()??;
        let build_record: Self = serde_json::from_slice(&file.content).ok()?;
        (build_record.v == VERSION && !build_record.files.is_empty()).then_some(build_record)
    }

    /// Atomic.
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

    /// Removes the record of a build whose name a newer build has taken.
    pub(super) fn forget(home: &Home, fingerprint: &str) {
        if let Some(path) = path(home, fingerprint) {
            let _ = fs::remove_file(path); // nothing depends on it
        }
    }

    /// Paths that were added, removed or changed.
    pub(super) fn differences(&self, entries: &[ContextEntry]) -> Vec<String> {
        let now = Self::of(entries).files;
        if now.is_empty() && !entries.is_empty() {
            return Vec::new();
        }
        let changed = now.iter().filter(|(path, hash)| self.files.get(*path) != Some(hash));
        let removed = self.files.keys().filter(|path| !now.contains_key(*path));
        let mut all: Vec<String> = changed.map(|(path, _)| path).chain(removed).cloned().collect();
        all.sort();
        all
    }
}

/// The fingerprint comes from a label, which is untrusted.
fn path(home: &Home, fingerprint: &str) -> Option<PathBuf> {
    let plain = fingerprint.len() == 64 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| home.path().join(DIRECTORY).join(format!("{fingerprint}.json")))
}
