//! Finds the Dockerfile and its context, and checks whether a run could have written them.
//!
//! The engine executes a Dockerfile with its own network and as its own root, so a Dockerfile can do more than a run.
//! In a tree that a run could write to, it must be trusted by content, like a manifest, and so must `.dockerignore`,
//! which decides which files get into the image. No link in such a tree is followed.

use std::io;
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, Resolved, resolve};
use belljar_spec::{OsText, Widening, WritableTree, paths};

use super::BuildError;
use crate::config::ReadError;
use crate::config::files::DecisionReader;
use crate::config::trust::{Examined, Store, TrustState};
use belljar_record::home::Home;
use belljar_record::writable_trees;

pub(super) const IGNORE_FILE: &str = ".dockerignore";
/// Searched in this order if none is named.
const DEFAULT_NAMES: [&str; 2] = ["Dockerfile", "Containerfile"];
/// Separates these hashes from every other use of BLAKE3 here.
const TRUST_CONTEXT: &str = "belljar 2026 content of a trusted Dockerfile";

/// Both files, read only once: a live run could change them.
#[derive(Debug)]
pub(super) struct BuildFiles {
    /// With links resolved.
    pub(super) dockerfile: PathBuf,
    pub(super) context: PathBuf,
    pub(super) content: Vec<u8>,
    pub(super) ignore: Option<Vec<u8>>,
    /// A run could have written the Dockerfile or the ignore file.
    needs_trust: bool,
    /// Runs could have written files of the context.
    pub(super) written_by_runs: bool,
}

impl BuildFiles {
    pub(super) fn find(
        home: &Home,
        dockerfile: Option<&Path>,
        context: Option<&Path>,
    ) -> Result<Self, BuildError> {
        let trees = WritableTrees::known(home)?;
        let cwd = std::env::current_dir().map_err(|error| io_error(Path::new("."), error))?;
        let context = match (context, dockerfile.and_then(Path::parent)) {
            (Some(context), _) => cwd.join(context),
            (None, Some(parent)) => cwd.join(parent),
            (None, None) => cwd.clone(),
        };
        let context = trees.resolve(&paths::clean(&context))?;
        if !context.is_directory() {
            return Err(BuildError::NoDirectory(context.path));
        }
        let named = match dockerfile {
            Some(file) => paths::clean(&cwd.join(file)),
            None => default_dockerfile(&context.path)?,
        };
        let reader = DecisionReader::new(trees.0.clone());
        let file = match reader.read(&named, None) {
            Err(ReadError::PlantedLink { link, tree }) => {
                return Err(BuildError::Planted { link, tree });
            }
            file => file?.ok_or(BuildError::NoFile(named))?,
        };
        let ignore = reader.read(&context.path.join(IGNORE_FILE), Some(&context.path))?;
        Ok(Self {
            needs_trust: file.written_in.is_some() || context.written_in.is_some(),
            written_by_runs: trees.overlap(&context),
            dockerfile: file.path,
            context: context.path,
            content: file.content,
            ignore: ignore.map(|file| file.content),
        })
    }

    /// The hash of what trust covers.
    fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key(TRUST_CONTEXT);
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(&self.content);
        add(OsText::from(self.context.as_path()).as_bytes());
        match &self.ignore {
            Some(ignore) => {
                add(b"there");
                add(ignore);
            }
            None => add(b"missing"),
        }
        hasher.finalize().to_hex().to_string()
    }

    fn standing(&self, home: &Home) -> Result<TrustState, BuildError> {
        let store = Store::open(home).map_err(BuildError::Trust)?;
        Ok(store.standing(&self.dockerfile.as_path().into(), &self.hash()))
    }

    pub(super) fn refuse_untrusted(&self, home: &Home) -> Result<(), BuildError> {
        if !self.needs_trust {
            return Ok(());
        }
        match self.standing(home)? {
            TrustState::Trusted => Ok(()),
            standing => Err(BuildError::Untrusted {
                standing,
                dockerfile: self.dockerfile.clone(),
                context: self.context.clone(),
            }),
        }
    }

    pub(super) fn examined(self, home: &Home) -> Result<Examined, BuildError> {
        let what = "is executed by the engine when its image is built".to_owned();
        let ignored = match &self.ignore {
            Some(_) => "decides which files stay out of the image",
            None => "does not exist: every file of the context can get into the image",
        };
        let context = OsText::from(self.context.join(IGNORE_FILE));
        Ok(Examined {
            hash: self.hash(),
            standing: self.standing(home)?,
            widenings: vec![
                Widening { key: "Dockerfile".to_owned(), what },
                Widening { key: context.to_string(), what: ignored.to_owned() },
            ],
            path: self.dockerfile,
        })
    }
}

fn default_dockerfile(context: &Path) -> Result<PathBuf, BuildError> {
    let found = DEFAULT_NAMES.iter().map(|name| context.join(name)).find(|path| path.exists());
    found.ok_or_else(|| BuildError::NoDockerfile(context.to_owned()))
}

fn io_error(path: &Path, error: io::Error) -> BuildError {
    BuildError::Io { path: path.to_owned(), error }
}

/// The trees that runs could write to.
struct WritableTrees(Vec<WritableTree>);

impl WritableTrees {
    fn known(home: &Home) -> Result<Self, BuildError> {
        writable_trees::known(home).map(Self).map_err(|error| io_error(home.path(), error))
    }

    /// Resolves a path without following links in the trees, which a run may have planted.
    fn resolve(&self, path: &Path) -> Result<Resolved, BuildError> {
        resolve(path, &self.0).map_err(|error| match error {
            ResolveError::Missing { .. } => BuildError::NoFile(path.to_owned()),
            ResolveError::PlantedLink { link, tree } => BuildError::Planted { link, tree },
            ResolveError::Open { path, error } => io_error(&path, error.into()),
            error => io_error(path, io::Error::other(error.to_string())),
        })
    }

    /// Whether a run could have written files in it.
    fn overlap(&self, directory: &Resolved) -> bool {
        directory.written_in.is_some()
            || self.0.iter().any(|tree| tree.as_path().starts_with(&directory.path))
    }
}
