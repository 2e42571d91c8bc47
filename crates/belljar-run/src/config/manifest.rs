//! Which manifest counts, and whether it may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_linux::jail::resolve::{ResolveError, resolve};
use belljar_spec::autorun::{self, Class};
use belljar_spec::manifest::FILE_NAME;
use belljar_spec::{
    Baseline, Located, Manifest, OsText, Purpose, Widening, WritableTree, widenings,
};

use super::files::{DecisionReader, Links, read};
use super::find::upwards;
use super::trust::{self, Standing, Store};
use super::{ConfigError, Invocation, ManifestSource};
use belljar_record::home::Home;

/// A manifest as it was read.
pub(crate) struct ReadManifest {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
    pub(crate) values: Manifest,
    pub(crate) owner: u32,
    /// The tree it lies in, if a run could write that. Only asked of one that the operator named.
    pub(crate) written_in: Option<PathBuf>,
}

impl ReadManifest {
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Where it really lies.
    pub(super) fn real_directory(&self) -> PathBuf {
        let directory = self.directory();
        std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
    }

    /// Reads the file by that name; nothing if there is none. No link is followed to it.
    pub(crate) fn read(path: PathBuf) -> Result<Option<Self>, ConfigError> {
        let Some(file) = read(&path, Links::Refuse)? else {
            return Ok(None);
        };
        let values = Manifest::parse(&file.content, &path.as_path().into())?;
        let (content, owner) = (file.content, file.owner);
        Ok(Some(Self { path, content, values, owner, written_in: None }))
    }

    /// The file that the operator named.
    fn read_named(path: PathBuf, reader: &DecisionReader) -> Result<Option<Self>, ConfigError> {
        let Some(file) = reader.read(&path, None)? else {
            return Ok(None);
        };
        let values = Manifest::parse(&file.content, &path.as_path().into())?;
        let (content, owner, written_in) = (file.content, file.owner, file.written_in);
        Ok(Some(Self { path, content, values, owner, written_in }))
    }
}

/// The manifest that counts.
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
                // A link could lead to a file that somebody trusts, from a tree that a run wrote.
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

/// What a manifest is judged by.
pub(super) struct Judgement<'a> {
    /// What would hold without the manifest.
    pub(super) lower: &'a Manifest,
    /// What stands above it: variables and flags.
    pub(super) higher: &'a Manifest,
    pub(super) purpose: Purpose,
    pub(super) user_home: Option<&'a Path>,
    pub(super) reader: &'a DecisionReader,
}

impl Judgement<'_> {
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

/// Where a path leads, with no link followed in the trees.
pub(super) fn locate(path: &Path, trees: &[WritableTree]) -> Located {
    match resolve(path, trees) {
        Ok(found) => Located::At(found.path),
        Err(ResolveError::PlantedLink { link, .. }) => {
            Located::ByLink { link, to: std::fs::canonicalize(path).ok() }
        }
        Err(ResolveError::Missing { .. }) => Located::Missing,
        // Not to be looked at by us is not to be judged either: outside is the careful answer.
        Err(_) => Located::ByLink { link: path.to_owned(), to: None },
    }
}

/// Whether a tool of the host executes what lies at a path, or in it, without being asked: by its name, or as a part of a
/// git directory, which is told by what it holds.
fn is_control(path: &Path) -> bool {
    let is_one =
        |found: Option<autorun::Autorun>| found.is_some_and(|it| it.class == Class::Control);
    // A directory that can hold such files counts as a link of its name does: it leads to them.
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

/// Another manifest above this one, whose settings would count without it.
fn manifest_above(manifest: &ReadManifest, user_home: Option<&Path>) -> Option<Widening> {
    let above = upwards(manifest.directory(), user_home).into_iter().skip(1);
    let other = above.map(|directory| directory.join(FILE_NAME)).find(|path| path.exists())?;
    let what = format!("is used instead of {}", OsText::from(other));
    Some(Widening { key: FILE_NAME.to_owned(), what })
}

/// A manifest that may count.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Files that were trusted with the manifest, as they were read for that.
    pub(super) files: BTreeMap<OsText, Vec<u8>>,
    /// The manifest's tree, where nobody trusted it: no link in it is followed, not even later.
    pub(super) untrusted_tree: Option<OsText>,
}

pub(super) fn check_trust(
    manifest: &ReadManifest,
    invocation: &Invocation,
    judgement: &Judgement<'_>,
    home: &Home,
) -> Result<Accepted, ConfigError> {
    let is_named = match invocation.source {
        ManifestSource::File(_) => manifest.written_in.is_none(),
        ManifestSource::None => true,
        ManifestSource::Nearest => false,
    };
    if is_named {
        return Ok(Accepted::default());
    }
    let mut widenings = judgement.widenings(manifest);
    if invocation.source == ManifestSource::Nearest {
        let user = rustix::process::geteuid().as_raw();
        widenings.extend(strangers_tree(manifest, &invocation.cwd, user));
        widenings.extend(manifest_above(manifest, judgement.user_home));
    }
    if widenings.is_empty() {
        let untrusted_tree = Some(OsText::from(manifest.real_directory()));
        return Ok(Accepted { files: BTreeMap::new(), untrusted_tree });
    }
    let content = trust::content(manifest, judgement.user_home, judgement.reader)?;
    match Store::open(home)?.standing(&trust::canonical(&manifest.path)?, &content.hash) {
        Standing::Trusted => Ok(Accepted { files: content.files, untrusted_tree: None }),
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
            written_in: None,
        };
        let below = Path::new("/shared/mine");
        assert!(strangers_tree(&of(1001), below, 1000).is_some());
        assert!(strangers_tree(&of(1000), below, 1000).is_none());
        assert!(strangers_tree(&of(0), below, 1000).is_none());
        assert!(strangers_tree(&of(1001), Path::new("/shared"), 1000).is_none());
    }
}
