//! Where a Dockerfile and its context are, and whether a run could have had a hand in them.
//!
//! What a Dockerfile says is executed by the engine, with its network and as its root: more than a run may
//! do. So one in a tree that a run could write is trusted by content, like a manifest; and so is what
//! decides which files the image gets to hold, `.dockerignore`. No link in such a tree is followed.

use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::{OsText, Widening, paths};

use super::BuildError;
use crate::config::files::{Links, read};
use crate::config::trust::{Examined, Standing, Store};
use crate::home::Home;
use crate::run::writable;

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
        let lexical_context = paths::clean(&context);
        let context = canonical(&context)?;
        if !context.is_dir() {
            return Err(BuildError::NoDirectory(context));
        }
        trees.refuse_planted(&lexical_context, &context)?;
        let named = match dockerfile {
            Some(file) => cwd.join(file),
            None => usual(&context)?,
        };
        let parent = canonical(named.parent().unwrap_or(Path::new("/")))?;
        let name = named.file_name().ok_or_else(|| BuildError::NoFile(named.clone()))?;
        trees.refuse_planted(&paths::clean(&named), &parent.join(name))?;
        let (path, links) = match trees.hold(&parent) {
            true => (parent.join(name), Links::Refuse),
            // The operator's own link, which may lead into such a tree all the same.
            false => (canonical(&named)?, Links::Refuse),
        };
        let file = read(&path, links)?.ok_or_else(|| BuildError::NoFile(path.clone()))?;
        let ignore = read(&context.join(IGNORE_FILE), Links::Refuse)?;
        Ok(Self {
            needs_trust: trees.hold(&path) || trees.hold(&context),
            others_wrote: trees.touch(&context),
            dockerfile: path,
            context,
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

fn canonical(path: &Path) -> Result<PathBuf, BuildError> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(BuildError::NoFile(path.to_owned()))
        }
        found => found.map_err(|error| io_error(path, error)),
    }
}

fn io_error(path: &Path, error: io::Error) -> BuildError {
    BuildError::Io { path: path.to_owned(), error }
}

/// Those that a run could ever write.
struct Trees(Vec<PathBuf>);

impl Trees {
    fn known(home: &Home) -> Result<Self, BuildError> {
        let known = writable::known(home).map_err(|error| io_error(home.path(), error))?;
        let real = known.iter().filter_map(|tree| std::fs::canonicalize(tree).ok());
        let real: Vec<PathBuf> = real.collect();
        Ok(Self(known.into_iter().chain(real).collect()))
    }

    fn hold(&self, path: &Path) -> bool {
        self.0.iter().any(|tree| path.starts_with(tree))
    }

    /// It is in one, or has one in it.
    fn touch(&self, path: &Path) -> bool {
        self.0.iter().any(|tree| path.starts_with(tree) || tree.starts_with(path))
    }

    /// A path through such a tree that ends outside goes by a link, which a run may have put there.
    fn refuse_planted(&self, named: &Path, real: &Path) -> Result<(), BuildError> {
        match self.hold(named) && !self.hold(real) {
            true => Err(BuildError::Planted { named: named.to_owned(), real: real.to_owned() }),
            false => Ok(()),
        }
    }
}
