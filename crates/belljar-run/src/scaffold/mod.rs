//! Writes the manifest of `init` and the folders of `new`. Asks nothing, prints nothing.
//!
//! Trust is recorded for the bytes that were written: a live run in the same directory could change a file before it is
//! read again.

mod answers;
mod folder;
mod manifest;
mod starter;
mod write;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::manifest::{FILE_NAME, ManifestError};
use belljar_spec::{Manifest, OsText, paths};
use serde::Serialize;

pub use answers::{AgentAnswer, AnswerError, Answers, RepeatAnswer, UntilAnswer};
pub use folder::{Folder, FolderName, Template, new_folder};
pub use manifest::manifest_text;
pub(crate) use starter::TASK_PLACEHOLDERS;
pub use write::Existing;

use crate::config::files::{Links, read};
use crate::config::trust::{self, TrustError};
use crate::config::{ConfigError, ReadError, host};
use belljar_record::home::Home;

#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error("{} already exists; --force replaces it and keeps the old one as belljar.toml.old", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a file, so it is not replaced", .0.display())]
    NoFile(PathBuf),
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot open the directory {}", .path.display())]
    Directory {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the generated manifest is invalid; this is a bug in Belljar")]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "\"{0}\" is not a valid folder name; use at most 60 letters, digits, -, _ and ., beginning with a letter or a digit"
    )]
    FolderName(String),
}

/// What `init` wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InitReport {
    pub manifest: OsText,
    /// The path of the previous manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<OsText>,
    /// The prompt file, if it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_made: Option<OsText>,
}

/// Writes the manifest, and its prompt file if that is missing; trusts both as written.
pub fn init(
    directory: &Path,
    answers: &Answers,
    existing: Existing,
    env: &BTreeMap<OsString, OsString>,
    home: &Home,
) -> Result<InitReport, ScaffoldError> {
    let directory = std::fs::canonicalize(directory)
        .map_err(|error| ScaffoldError::Directory { path: directory.to_owned(), error })?;
    let text = manifest_text(answers)?;
    let path = directory.join(FILE_NAME);
    write::check(&path, existing)?;
    let values = Manifest::parse(text.as_bytes(), &path.as_path().into())?;
    let user_home = host::user_home(env);
    let mut files = BTreeMap::new();
    let mut prompt_made = None;
    if let Some(file) = &values.agent.prompt_file {
        let prompt = paths::absolute(file.as_path(), &directory, user_home.as_deref());
        let (content, made) = prompt_file(&prompt, answers)?;
        prompt_made = made.then(|| OsText::from(prompt.as_path()));
        files.insert(OsText::from(prompt), content);
    }
    let set_aside = write::manifest(&directory, text.as_bytes(), existing)?;
    trust::trust_written(&path, text.as_bytes(), &files, user_home.as_deref(), home)?;
    let set_aside = set_aside.map(OsText::from);
    Ok(InitReport { manifest: path.into(), set_aside, prompt_made })
}

/// The content of the prompt file, and whether it was created now.
fn prompt_file(path: &Path, answers: &Answers) -> Result<(Vec<u8>, bool), ScaffoldError> {
    if let Some(found) = read(path, Links::Refuse)? {
        return Ok((found.content, false));
    }
    let text = starter::prompt(answers);
    write::new_file(path, text.as_bytes())?;
    Ok((text.into_bytes(), true))
}
