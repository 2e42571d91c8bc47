//! Creates a numbered folder for one task: manifest, prompt, data and notes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::manifest::AgentKind;
use belljar_spec::text::escape;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::Serialize;

use super::answers::{AgentAnswer, Answers, RepeatAnswer, UntilAnswer};
use super::write::{Existing, new_file, new_program};
use super::{ScaffoldError, init, starter};
use belljar_record::home::Home;

const DATA: &str = "data";
const PROMPT: &str = "PROMPT.md";
const SCRIPT: &str = "work.sh";
const MAX_NAME: usize = 60;

/// What the folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Template {
    /// An agent in a loop.
    Loop,
    /// One command.
    Command,
    /// Several runs of the same folder.
    Fleet,
}

/// The part after the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderName(String);

impl std::str::FromStr for FolderName {
    type Err = ScaffoldError;

    fn from_str(name: &str) -> Result<Self, ScaffoldError> {
        let is_punctuation = |b: u8| matches!(b, b'_' | b'.' | b'-');
        let good = name.bytes().all(|b| b.is_ascii_alphanumeric() || is_punctuation(b))
            && name.bytes().next().is_some_and(|b| !is_punctuation(b))
            && name.len() <= MAX_NAME;
        match good {
            true => Ok(Self(name.to_owned())),
            false => Err(ScaffoldError::FolderName(escape(name.as_bytes()))),
        }
    }
}

/// What `new` created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Folder {
    pub path: OsText,
    pub name: String,
    pub template: Template,
    pub manifest: OsText,
}

/// Creates `NNN_NAME` in `parent`, completely or not at all.
pub fn new_folder(
    parent: &Path,
    name: &FolderName,
    template: Template,
    kind: AgentKind,
    env: &BTreeMap<OsString, OsString>,
    home: &Home,
) -> Result<Folder, ScaffoldError> {
    let no_directory = |error| ScaffoldError::Directory { path: parent.to_owned(), error };
    let parent = fs::canonicalize(parent).map_err(no_directory)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(&parent, flags, Mode::empty());
    let lock = lock.map_err(|errno| no_directory(errno.into()))?;
    // Two concurrent calls with different names would take the same number.
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)
        .map_err(|errno| no_directory(errno.into()))?;
    let path = make_numbered(&parent, name)?;
    let made = fill(&path, template, kind, env, home);
    if made.is_err() {
        let _ = fs::remove_dir_all(&path); // created by this call
    }
    made
}

fn make_numbered(parent: &Path, name: &FolderName) -> Result<PathBuf, ScaffoldError> {
    let failed = |path: &Path, error| ScaffoldError::Write { path: path.to_owned(), error };
    let mut number = 0;
    for entry in fs::read_dir(parent).map_err(|error| failed(parent, error))? {
        let entry = entry.map_err(|error| failed(parent, error))?;
        number = number.max(number_of(&entry.file_name()).unwrap_or(0));
    }
    loop {
        number += 1;
        let path = parent.join(format!("{number:03}_{}", name.0));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            // A process without the lock was faster.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&path, error)),
        }
    }
}

/// The number of `042_name`; more than three digits after 999.
fn number_of(name: &std::ffi::OsStr) -> Option<u32> {
    let (number, _) = name.to_str()?.split_once('_')?;
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    (digits && (3..=8).contains(&number.len())).then(|| number.parse().ok())?
}

fn fill(
    path: &Path,
    template: Template,
    kind: AgentKind,
    env: &BTreeMap<OsString, OsString>,
    home: &Home,
) -> Result<Folder, ScaffoldError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let data = path.join(DATA);
    fs::create_dir(&data).map_err(|error| ScaffoldError::Write { path: data.clone(), error })?;
    if template == Template::Command {
        new_program(&path.join(SCRIPT), starter::SCRIPT.as_bytes())?;
    }
    if template == Template::Fleet {
        new_file(&path.join("README.md"), starter::fleet(&name).as_bytes())?;
    }
    new_file(&path.join("NOTES.md"), starter::notes(&name, template, kind).as_bytes())?;
    let written = init(path, &answers(&name, template, kind), Existing::Refuse, env, home)?;
    Ok(Folder { path: path.into(), name, template, manifest: written.manifest })
}

fn answers(name: &str, template: Template, kind: AgentKind) -> Answers {
    let with_prompt =
        AgentAnswer { kind, command: Vec::new(), prompt_file: Some(PROMPT.to_owned()) };
    let repeat = RepeatAnswer {
        max_iterations: Some(20),
        until: Some(UntilAnswer::File("DONE".to_owned())),
        ..RepeatAnswer::default()
    };
    let (agent, repeat) = match template {
        Template::Loop | Template::Fleet => (with_prompt, Some(repeat)),
        Template::Command => {
            let command = vec!["sh".to_owned(), SCRIPT.to_owned()];
            (AgentAnswer { kind: AgentKind::Command, command, prompt_file: None }, None)
        }
    };
    // Each worker of a fleet gets its own name.
    let name = (template != Template::Fleet).then(|| name.to_owned());
    let (agent, data) = (Some(agent), Some(DATA.to_owned()));
    Answers { agent, repeat, data, name, ..Answers::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "fix-the_parser.2", "0"] {
            assert!(good.parse::<FolderName>().is_ok(), "{good}");
        }
        let long = "x".repeat(61);
        for bad in ["", ".", "..", ".x", "-x", "_x", "a/b", "/a", "a b", "ä", "a\n", "a\0", &long]
        {
            assert!(bad.parse::<FolderName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_are_read_back() {
        let number = |name: &str| number_of(name.as_ref());
        assert_eq!(number("007_x"), Some(7));
        assert_eq!(number("1234_x_y"), Some(1234));
        for none in ["7_x", "x_007", "007", "+07_x", "123456789_x", "00a_x"] {
            assert_eq!(number(none), None, "{none}");
        }
    }
}
