//! Which manifest counts, and whether it may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_linux::placeholder::holds_a_place;
use belljar_spec::manifest::FILE_NAME;
use belljar_spec::{Manifest, OsText, Widening, widenings};

use super::files::{Links, read};
use super::find::upwards;
use super::trust::{self, Standing, Store};
use super::{ConfigError, Invocation, ManifestSource};
use crate::home::Home;

/// A manifest as it was read.
pub(crate) struct ReadManifest {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
    pub(crate) values: Manifest,
    pub(crate) owner: u32,
}

impl ReadManifest {
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Reads the file by that name; nothing if there is none.
    pub(crate) fn read(path: PathBuf, links: Links) -> Result<Option<Self>, ConfigError> {
        let Some(file) = read(&path, links)? else {
            return Ok(None);
        };
        let values = Manifest::parse(&file.content, &path.as_path().into())?;
        Ok(Some(Self { path, content: file.content, values, owner: file.owner }))
    }
}

/// The manifest that counts.
pub(super) fn find(
    invocation: &Invocation,
    user_home: Option<&Path>,
) -> Result<Option<ReadManifest>, ConfigError> {
    match &invocation.source {
        ManifestSource::None => Ok(None),
        ManifestSource::File(path) => {
            let path = belljar_spec::paths::clean(&invocation.cwd.join(path));
            let manifest = ReadManifest::read(path.clone(), Links::Follow)?;
            manifest.map(Some).ok_or(ConfigError::NoManifest(path))
        }
        ManifestSource::Nearest => {
            for directory in upwards(&invocation.cwd, user_home) {
                // A link could lead to a file that somebody trusts, from a tree that a run wrote.
                let path = directory.join(FILE_NAME);
                let found = match ReadManifest::read(path.clone(), Links::Refuse) {
                    // Another run works here, and cannot make one.
                    Err(ConfigError::Read(_)) if holds_a_place(&path) => None,
                    found => found?,
                };
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        }
    }
}

/// Gives the files that were trusted with the manifest, as they were read for that.
pub(super) fn check_trust(
    manifest: &ReadManifest,
    invocation: &Invocation,
    built_in: &Manifest,
    user_home: Option<&Path>,
    home: &Home,
) -> Result<BTreeMap<OsText, Vec<u8>>, ConfigError> {
    match invocation.source {
        ManifestSource::File(_) | ManifestSource::None => return Ok(BTreeMap::new()),
        ManifestSource::Nearest => {}
    }
    let mut widenings = widenings(&manifest.values, manifest.directory(), built_in);
    let user = rustix::process::geteuid().as_raw();
    widenings.extend(strangers_tree(manifest, &invocation.cwd, user));
    if widenings.is_empty() {
        return Ok(BTreeMap::new());
    }
    let content = trust::content(manifest, user_home)?;
    match Store::open(home)?.standing(&trust::canonical(&manifest.path)?, &content.hash) {
        Standing::Trusted => Ok(content.files),
        standing => {
            let files = content.files.into_keys().collect();
            Err(ConfigError::Untrusted { path: manifest.path.clone(), files, standing, widenings })
        }
    }
}

/// A manifest above the current directory makes more than that directory the workspace: fine for
/// one's own, not for one that somebody else left in a shared place.
fn strangers_tree(manifest: &ReadManifest, cwd: &Path, user: u32) -> Option<Widening> {
    let own = manifest.owner == user || manifest.owner == 0;
    if own || manifest.directory() == cwd {
        return None;
    }
    let what = format!(
        "makes {} the workspace, and belongs to user {}",
        OsText::from(manifest.directory()),
        manifest.owner
    );
    Some(Widening { key: "sandbox.workspace.path".into(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_strangers_manifest_above_is_suspicious() {
        let of = |owner| ReadManifest {
            path: "/shared/belljar.toml".into(),
            content: Vec::new(),
            values: Manifest::default(),
            owner,
        };
        let below = Path::new("/shared/mine");
        assert!(strangers_tree(&of(1001), below, 1000).is_some());
        assert!(strangers_tree(&of(1000), below, 1000).is_none());
        assert!(strangers_tree(&of(0), below, 1000).is_none());
        assert!(strangers_tree(&of(1001), Path::new("/shared"), 1000).is_none());
    }
}
