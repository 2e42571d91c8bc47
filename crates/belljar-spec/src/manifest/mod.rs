//! Reads `belljar.toml` and every configuration file: the same keys everywhere.
//!
//! Reading is strict. An unknown key, a wrong type or a bad value is an error with the file,
//! the line and, for a key, the nearest known one.

mod agent;
mod limits;
mod network;
pub(crate) mod node;
pub(crate) mod print;
mod sandbox;
mod scalars;
pub(crate) mod table;
pub(crate) mod value;

use std::fmt;

use serde_json::{Value as Json, json};
use toml_edit::Document;

pub use agent::{
    Agent, CommandRule, Commands, Loop, Ready, Retention, Service, Services, Setup, Until,
};
pub use limits::{LimitSettings, Policy, Waive};
pub use network::{Network, NetworkBudget, PublishSetting, Route, Secret, check_secret};
pub use sandbox::{
    GitIdentitySetting, HiddenName, MountEntry, RootfsSetting, RunName, Sandbox, ShellPath,
    TmpfsEntry, VariableName, Variables, Workspace,
};
pub use scalars::{
    AgentKind, Auth, CommandMode, GitMode, Limit, OutputFormat, Permissions, Pull, SessionMode,
    Usd, WorkspaceMode,
};
pub use value::{Added, HostPath};

use node::{Data, Node, Problem, TableEntry};
use table::section;
use value::{Field, Value};

use crate::text::{OsText, escape};

/// The file's name beside the work.
pub const FILE_NAME: &str = "belljar.toml";

section! {
    /// A Belljar manifest.
    pub struct Manifest {
        /// The boundary, and what is visible inside it.
        sandbox: Sandbox,
        /// What the run can reach. Absent or empty: nothing.
        network: Network,
        /// Credentials that never enter the sandbox. Every layer adds to these.
        secret: Option<Added<Secret>>,
        /// Plain ports inside that become authenticated connections outside. Every layer adds to these.
        route: Option<Added<Route>>,
        /// What the run may use.
        limits: LimitSettings,
        /// Which promises must hold.
        policy: Policy,
        /// The agent that a run without a command runs.
        agent: Agent,
        /// Runs the agent again and again.
        r#loop: Loop,
        /// Helper processes, by name. Every layer adds to these.
        service: Option<Services>,
        /// Runs once before the agent.
        setup: Setup,
        /// Rules on commands.
        commands: Commands,
        /// How much of stopped runs is retained.
        retention: Retention,
    }
}

/// How a setting that is given as text is read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// As a TOML value, or else as a bare string: in variables and after `-c`.
    Toml,
    /// As a literal string: for a key that has a flag.
    Text,
}

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File { path: OsText, line: usize, column: usize },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Something in a manifest, a variable or a `-c` flag cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {}{what}", key_prefix(key))]
pub struct ManifestError {
    pub place: Place,
    /// The dotted key; empty where the file is not TOML at all.
    pub key: String,
    pub what: String,
}

fn key_prefix(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}

impl Manifest {
    /// `path` is only for messages.
    pub fn parse(content: &[u8], path: &OsText) -> Result<Self, ManifestError> {
        let parsed: Self = parse_file(content, path)?;
        Ok(parsed)
    }

    /// One setting, given as text. A list may be written with commas.
    pub fn from_setting(
        keys: &[String],
        text: &str,
        prefer: Prefer,
        place: Place,
    ) -> Result<Self, ManifestError> {
        let toml = text.parse::<toml_edit::Value>().ok();
        let toml = toml.map(|value| Node::new(Node::from_value(&value).data));
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let list = Node::new(Data::List(items.map(Node::text).collect()));
        let candidates = match prefer {
            Prefer::Toml => [toml, Some(Node::text(text)), Some(list)],
            Prefer::Text => [Some(Node::text(text)), toml, Some(list)],
        };

        let mut first = None;
        for candidate in candidates.into_iter().flatten() {
            match Self::read(&wrap(keys, candidate)) {
                Ok(manifest) => return Ok(manifest),
                // The others are guesses, so the first problem is the one to report.
                Err(problem) => first = first.or(Some(problem)),
            }
        }
        match first {
            Some(problem) => Err(located::<Self>(problem, place)),
            None => Ok(Self::default()),
        }
    }

    /// Reads what [`Manifest::to_toml`] and people write.
    pub fn to_toml(&self) -> String {
        match self.write() {
            Data::Table(entries) => print::document(&entries),
            _ => String::new(),
        }
    }

    pub fn to_json(&self) -> Json {
        print::json(&self.write())
    }

    /// Every dotted key that can be set.
    pub fn keys() -> Vec<String> {
        let mut keys = Vec::new();
        Self::leaf_keys(String::new(), &mut keys);
        keys
    }
}

/// Reads a whole file of a strict table type.
pub(crate) fn parse_file<T: Value + Field>(
    content: &[u8],
    path: &OsText,
) -> Result<T, ManifestError> {
    let at = |offset: usize| {
        let (line, column) = line_and_column(content, offset);
        Place::File { path: path.clone(), line, column }
    };
    let no_toml = |offset, what| ManifestError { place: at(offset), key: String::new(), what };
    let text = std::str::from_utf8(content)
        .map_err(|error| no_toml(error.valid_up_to(), "the file is not UTF-8".into()))?;
    let document = Document::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        no_toml(offset, escape(error.message().replace('\n', ", ").as_bytes()))
    })?;
    T::read(&Node::from_item(document.as_item())).map_err(|problem| {
        let place = at(problem.place.as_ref().map_or(0, |place| place.start));
        located::<T>(problem, place)
    })
}

/// A key that is known elsewhere in the file is sent there.
fn located<T: Field>(problem: Problem, place: Place) -> ManifestError {
    let key = problem.key();
    let elsewhere = problem.unknown.as_ref().and_then(|unknown| {
        let suffix = format!(".{unknown}");
        let mut keys = Vec::new();
        T::leaf_keys(String::new(), &mut keys);
        keys.into_iter().find(|known| known.ends_with(&suffix))
    });
    let what = match (problem.unknown, elsewhere) {
        (Some(unknown), Some(known)) => {
            format!("unknown key \"{}\"; did you mean {known}?", escape(unknown.as_bytes()))
        }
        _ => problem.what,
    };
    ManifestError { place, key, what }
}

fn wrap(keys: &[String], node: Node) -> Node {
    keys.iter().rev().fold(node, |node, key| {
        Node::new(Data::Table(vec![TableEntry { key: key.clone(), key_place: None, node }]))
    })
}

/// Both count from 1; columns are characters.
fn line_and_column(content: &[u8], offset: usize) -> (usize, usize) {
    let before = &content[..offset.min(content.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    (line, column)
}

/// The JSON schema of the manifest: made from the same tables that read it.
pub fn schema() -> Json {
    let mut schema = <Manifest as Value>::schema();
    if let Json::Object(object) = &mut schema {
        object.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        object.insert("title".into(), json!("belljar.toml"));
    }
    schema
}

/// The schema as it is published.
pub fn schema_text() -> String {
    let mut schema = schema();
    // Another crate in the build may ask serde_json to keep the order of insertion.
    schema.sort_all_objects();
    format!("{schema:#}\n")
}
