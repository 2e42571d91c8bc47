//! Finds the manifest of a run and checks whether it must be trusted first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, resolve};
use belljar_spec::autorun::{self, Class};
use belljar_spec::manifest::FILE_NAME;
use belljar_spec::{
    Baseline, Located, Manifest, OsText, Purpose, Widening, WritableTree, widenings,
};

use super::files::{DecisionReader, Links, read};
use super::find::upwards;
use super::trust::{self, Store, TrustState};
use super::{ConfigError, Invocation, ManifestSource};
use belljar_record::home::Home;

/// A manifest that was read from disk.
pub(crate) struct ReadManifest {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
    pub(crate) values: Manifest,
    pub(crate) owner: u32,
    /// The tree that contains it, if a run could write to that tree. Only determined for a manifest named by the user.
    pub(crate) written_in: Option<PathBuf>,
}

impl ReadManifest {
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// With links resolved.
    pub(super) fn real_directory(&self) -> PathBuf {
        let directory = self.directory();
        std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
    }

    /// `None` if the file does not exist. It must not be a link.
    pub(crate) fn read(path: PathBuf) -> Result<Option<Self>, ConfigError> {
        let Some(file) = read(&path, Links::Refuse)? else {
            return Ok(None);
        };
        let values = Manifest::parse(&file.content, &path.as_path().into())?;
        let (content, owner) = (file.content, file.owner);
        Ok(Some(Self { path, content, values, owner, written_in: None }))
    }

    /// The file that the user named.
    fn read_named(path: PathBuf, reader: &DecisionReader) -> Result<Option<Self>, ConfigError> {
        let Some(file) = reader.read(&path, None)? else {
            return Ok(None);
        };
        let values = Manifest::parse(&file.content, &path.as_path().into())?;
        let (content, owner, written_in) = (file.content, file.owner, file.written_in);
        Ok(Some(Self { path, content, values, owner, written_in }))
    }
}

/// The manifest that is used.
pub(super) fn find(
    invocation: &Invocation,
    user_home: Option<&Path>,
    reader: &DecisionReader,
) -> Result<Option<ReadManifest>, ConfigError> {
    match &invocation.source {
        ManifestSource::None => Ok(None),
        ManifestSource::File(path) => {
            let path = belljar_spec::paths::clean(&invocation.cwd.join(path));
            let manifest = ReadManifest::read_named(path.clone(), reader)?;
            manifest.map(Some).ok_or(ConfigError::NoManifest(path))
        }
        ManifestSource::Nearest => {
            for directory in upwards(&invocation.cwd, user_home) {
                // A run could plant a link to a manifest that is trusted elsewhere.
                let path = directory.join(FILE_NAME);
                let found = ReadManifest::read(path)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        }
    }
}

/// What a manifest is compared with to find out what it widens.
pub(super) struct ManifestCheck<'a> {
    /// The layers below the manifest.
    pub(super) lower: &'a Manifest,
    /// The layers above it: variables and flags.
    pub(super) higher: &'a Manifest,
    pub(super) purpose: Purpose,
    pub(super) user_home: Option<&'a Path>,
    pub(super) reader: &'a DecisionReader,
}

impl ManifestCheck<'_> {
    pub(super) fn widenings(&self, manifest: &ReadManifest) -> Vec<Widening> {
        let directory = manifest.real_directory();
        let trees = self.reader.trees_and(Some(&directory));
        let baseline = Baseline {
            lower: self.lower,
            higher: self.higher,
            directory: &directory,
            user_home: self.user_home,
            purpose: self.purpose,
            locate: &|path: &Path| locate(path, &trees),
            is_control: &is_control,
        };
        widenings(&manifest.values, baseline)
    }
}

/// Resolves a path without following links in the trees.
pub(super) fn locate(path: &Path, trees: &[WritableTree]) -> Located {
    match resolve(path, trees) {
        Ok(found) => Located::At(found.path),
        Err(ResolveError::PlantedLink { link, .. }) => {
            Located::ByLink { link, to: std::fs::canonicalize(path).ok() }
        }
        Err(ResolveError::Missing { .. }) => Located::Missing,
        // A path that cannot be read is treated as one that leads outside.
        Err(_) => Located::ByLink { link: path.to_owned(), to: None },
    }
}

/// Whether a tool on the host executes the file at a path, or files below it, on its own: by its name, or because it is
/// part of a git directory, which is recognized by its content.
fn is_control(path: &Path) -> bool {
    let is_one =
        |found: Option<autorun::Autorun>| found.is_some_and(|it| it.class == Class::Control);
    // A directory that can contain such files is treated like a link of that name.
    let by_name = [
        autorun::classify(path),
        autorun::classify(&path.join("entry")),
        autorun::classify_link(path),
    ];
    if by_name.into_iter().any(is_one) {
        return true;
    }
    path.ancestors().skip(1).any(|above| {
        let is_git = ["HEAD", "objects", "refs"].iter().all(|name| above.join(name).exists());
        let Ok(inside) = path.strip_prefix(above) else { return false };
        is_git
            && (is_one(autorun::in_git_directory(inside))
                || is_one(autorun::in_git_directory(&inside.join("entry"))))
    })
}

/// Another manifest in a parent directory, which would be used without this one.
fn manifest_above(manifest: &ReadManifest, user_home: Option<&Path>) -> Option<Widening> {
    let above = upwards(manifest.directory(), user_home).into_iter().skip(1);
    let other = above.map(|directory| directory.join(FILE_NAME)).find(|path| path.exists())?;
    let what = format!("is used instead of {}", OsText::from(other));
    Some(Widening { key: FILE_NAME.to_owned(), what })
}

/// A manifest that may be used.
#[derive(Debug, Default)]
pub(super) struct AcceptedManifest {
    /// Files that are trusted with the manifest, as they were hashed.
    pub(super) files: BTreeMap<OsText, Vec<u8>>,
    /// The manifest's tree if the manifest is not trusted: no link in it is followed, not even later.
    pub(super) untrusted_tree: Option<OsText>,
}

pub(super) fn check_trust(
    manifest: &ReadManifest,
    invocation: &Invocation,
    check: &ManifestCheck<'_>,
    home: &Home,
) -> Result<AcceptedManifest, ConfigError> {
    let is_named = match invocation.source {
        ManifestSource::File(_) => manifest.written_in.is_none(),
        ManifestSource::None => true,
        ManifestSource::Nearest => false,
    };
    if is_named {
        return Ok(AcceptedManifest::default());
    }
    let mut widenings = check.widenings(manifest);
    if invocation.source == ManifestSource::Nearest {
        let user = rustix::process::geteuid().as_raw();
        widenings.extend(foreign_workspace(manifest, &invocation.cwd, user));
        widenings.extend(manifest_above(manifest, check.user_home));
    }
    if widenings.is_empty() {
        let untrusted_tree = Some(OsText::from(manifest.real_directory()));
        return Ok(AcceptedManifest { files: BTreeMap::new(), untrusted_tree });
    }
    let content = trust::content(manifest, check.user_home, check.reader)?;
    match Store::open(home)?.standing(&trust::canonical(&manifest.path)?, &content.hash) {
        TrustState::Trusted => Ok(AcceptedManifest { files: content.files, untrusted_tree: None }),
        standing => {
            let files = content.files.into_keys().collect();
            Err(ConfigError::Untrusted { path: manifest.path.clone(), files, standing, widenings })
        }
    }
}

/// A manifest in a parent directory makes that directory the workspace, which needs trust if another user owns it.
fn foreign_workspace(manifest: &ReadManifest, cwd: &Path, user: u32) -> Option<Widening> {
    let is_own = manifest.owner == user || manifest.owner == 0;
    if is_own || manifest.directory() == cwd {
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
    fn a_manifest_of_another_user_above_needs_trust() {
        let of = |owner| ReadManifest {
            path: "/shared/belljar.toml".into(),
            content: Vec::new(),
            values: Manifest::default(),
            owner,
            written_in: None,
        };
        let below = Path::new("/shared/mine");
        assert!(foreign_workspace(&of(1001), below, 1000).is_some());
        assert!(foreign_workspace(&of(1000), below, 1000).is_none());
        assert!(foreign_workspace(&of(0), below, 1000).is_none());
        assert!(foreign_workspace(&of(1001), Path::new("/shared"), 1000).is_none());
    }
}
