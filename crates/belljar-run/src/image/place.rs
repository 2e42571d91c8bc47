//! Where a Dockerfile and its context are, and whether a run could have had a hand in them.
//!
//! What a Dockerfile says is executed by the engine, with its network and as its root: more than a run may
//! do. So one in a tree that a run could write is trusted by content, like a manifest; and so is what
//! decides which files the image gets to hold, `.dockerignore`. No link in such a tree is followed.

use std::io;
use std::path::{Path, PathBuf};

use belljar_linux::jail::resolve::{ResolveError, Resolved, resolve};
use belljar_spec::{OsText, Widening, WritableTree, paths};

use super::BuildError;
use crate::config::ReadError;
use crate::config::files::DecisionReader;
use crate::config::trust::{Examined, Standing, Store};
use belljar_record::home::Home;
use belljar_record::writable_trees;

pub(super) const IGNORE_FILE: &str = ".dockerignore";
/// Looked for in this order if none is named.
const USUAL: [&str; 2] = ["Dockerfile", "Containerfile"];
/// Keeps these hashes apart from every other use of BLAKE3 here.
const TRUST_CONTEXT: &str = "belljar 2026 content of a trusted Dockerfile";

/// Both files as they were read, and only once: a run that lives now could change them.
#[derive(Debug)]
pub(super) struct Place {
    /// Without links.
    pub(super) dockerfile: PathBuf,
    pub(super) context: PathBuf,
    pub(super) content: Vec<u8>,
    pub(super) ignore: Option<Vec<u8>>,
    /// A run could have written the Dockerfile, or what says which files are left out.
    needs_trust: bool,
    /// A run could have written something of the context.
    pub(super) others_wrote: bool,
}

impl Place {
    pub(super) fn find(
        home: &Home,
        dockerfile: Option<&Path>,
        context: Option<&Path>,
    ) -> Result<Self, BuildError> {
        let trees = Trees::known(home)?;
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
            None => usual(&context.path)?,
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
            others_wrote: trees.touch(&context),
            dockerfile: file.path,
            context: context.path,
            content: file.content,
            ignore: ignore.map(|file| file.content),
        })
    }

    /// What trust is about.
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

    fn standing(&self, home: &Home) -> Result<Standing, BuildError> {
        let store = Store::open(home).map_err(BuildError::Trust)?;
        Ok(store.standing(&self.dockerfile.as_path().into(), &self.hash()))
    }

    pub(super) fn refuse_untrusted(&self, home: &Home) -> Result<(), BuildError> {
        if !self.needs_trust {
            return Ok(());
        }
        match self.standing(home)? {
            Standing::Trusted => Ok(()),
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
            Some(_) => "says which files stay out of the image",
            None => "there is none: every file of the context can get into the image",
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

fn usual(context: &Path) -> Result<PathBuf, BuildError> {
    let found = USUAL.iter().map(|name| context.join(name)).find(|path| path.exists());
    found.ok_or_else(|| BuildError::NoDockerfile(context.to_owned()))
}

fn io_error(path: &Path, error: io::Error) -> BuildError {
    BuildError::Io { path: path.to_owned(), error }
}

/// Those that a run could ever write.
struct Trees(Vec<WritableTree>);

impl Trees {
    fn known(home: &Home) -> Result<Self, BuildError> {
        writable_trees::known(home).map(Self).map_err(|error| io_error(home.path(), error))
    }

    /// Where a path leads, with no link followed in one of the trees, which a run may have put there.
    fn resolve(&self, path: &Path) -> Result<Resolved, BuildError> {
        resolve(path, &self.0).map_err(|error| match error {
            ResolveError::Missing { .. } => BuildError::NoFile(path.to_owned()),
            ResolveError::PlantedLink { link, tree } => BuildError::Planted { link, tree },
            ResolveError::Open { path, error } => io_error(&path, error.into()),
            error => io_error(path, io::Error::other(error.to_string())),
        })
    }

    /// A run could have written something in it.
    fn touch(&self, directory: &Resolved) -> bool {
        directory.written_in.is_some()
            || self.0.iter().any(|tree| tree.as_path().starts_with(&directory.path))
    }
}
