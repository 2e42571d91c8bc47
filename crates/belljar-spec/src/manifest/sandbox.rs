//! `[sandbox]`: the boundary and what is visible inside.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::node::{Data, Node, Problem};
use super::scalars::{GitMode, Pull, WorkspaceMode};
use super::table::{section, table};
use super::value::{Added, Base, HostPath, Merge, Value};
use crate::backends::{BackendChoice, BackendName};
use crate::env_file;
use crate::git_identity::GitIdentity;
use crate::mount_arg::{DEFAULT_TMPFS_SIZE, TmpfsArg, WorkspaceArg};
use crate::runspec::{MountMode, User};
use crate::size::Size;
use crate::text::{OsText, escape};

section! {
    /// The boundary, and what is visible inside it.
    pub struct Sandbox {
        /// What makes the boundary. `auto`: on Linux the jail, else docker, podman; never `host`.
        backend: Option<BackendChoice>,
        /// Backends to try, in this order, when `backend` is not available. No other backend is tried.
        fallback: Option<Vec<BackendName>>,
        /// The one tree the run works on.
        workspace: Workspace,
        /// `host` for the host's programs, read-only, or a directory with a whole root file system. Not with `image`.
        rootfs: Option<RootfsSetting>,
        /// Image that the sandbox starts from. An engine has one in any case; the jail, if one is named here.
        image: Option<String>,
        /// When the image is fetched.
        pull: Option<Pull>,
        /// The program and arguments before the command, in place of the image's; an empty list for none.
        entrypoint: Option<Vec<OsText>>,
        /// The engine's runtime, such as `runsc`.
        oci_runtime: Option<String>,
        /// Install prefixes, read-only at the same path as outside, their `bin` on PATH. Every layer adds to these.
        tools: Option<Added<HostPath>>,
        /// Other trees and files of the host. Every layer adds to these.
        mounts: Option<Added<MountEntry>>,
        /// File systems in memory. Every layer adds to these.
        tmpfs: Option<Added<TmpfsEntry>>,
        /// Names in the workspace that do not exist inside. Every layer adds to these.
        hide: Option<Added<HiddenName>>,
        /// Variables inside. Every layer adds to these.
        env: Option<Variables>,
        /// Variables of the host to pass on, by name. Every layer adds to these.
        pass_env: Option<Added<VariableName>>,
        /// Files of variables, one NAME=VALUE a line. Every layer adds to these.
        env_file: Option<Added<HostPath>>,
        /// The user inside: UID or UID:GID. Never 0.
        user: Option<User>,
        /// Whether system calls that the filter refuses are recorded, for `belljar why`.
        trace_denied: Option<bool>,
        /// The shell of the user inside, by its absolute path; bash by default, where the sandbox has it.
        shell: Option<ShellPath>,
        /// Whether the repository of a linked worktree or a submodule is mounted with it: `auto` or `off`.
        git: Option<GitMode>,
        /// The author of commits made inside: `true` for the name and address in your own git configuration, `false`
        /// for none, or a table with both.
        git_identity: Option<GitIdentitySetting>,
        /// Sensitive sources that may be mounted all the same. Every layer adds to these.
        allow_source: Option<Added<HostPath>>,
        /// Files of a writable workspace that execute on the host and may be written to all the same.
        /// Every layer adds to these.
        allow_control: Option<Added<HiddenName>>,
        /// Where the command starts. A relative path starts in the workspace.
        workdir: Option<OsText>,
        /// The name of the run.
        name: Option<RunName>,
        /// Notes on the run, to find it by. Every layer adds to these.
        labels: Option<BTreeMap<String, String>>,
    }
}

section! {
    /// The one tree the run works on.
    pub struct Workspace {
        /// A directory; the manifest's by default.
        path: Option<HostPath>,
        /// `rw`, `ro`, `overlay` (writable inside, unchanged outside) or `none`.
        mode: Option<WorkspaceMode>,
        /// Where it appears inside; `same` is the same path as outside.
        target: Option<OsText>,
    }
}

impl Workspace {
    /// The value of `--workspace`. A directory without a mode keeps the mode of the layers below.
    pub fn set(&mut self, arg: WorkspaceArg) {
        match arg {
            WorkspaceArg::None => self.mode = Some(WorkspaceMode::None),
            WorkspaceArg::Directory { path, mode } => {
                self.path = Some(HostPath(path));
                self.mode = mode.map(WorkspaceMode::from);
            }
        }
    }
}

table! {
    /// A tree or file of the host that is visible inside.
    pub struct MountEntry {
        /// On the host.
        source: HostPath,
        /// Inside.
        target: OsText,
        /// `ro` by default.
        mode: Option<MountMode>,
    }
}

/// A file system in memory: `{ target, size }`, or `"/target:size=64m"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsEntry(pub TmpfsArg);

table! {
    /// A file system in memory.
    struct TmpfsTable {
        /// Inside.
        target: OsText,
        /// Its size; 64m by default.
        size: Option<Size>,
    }
}

impl Value for TmpfsEntry {
    fn read(node: &Node) -> Result<Self, Problem> {
        if let Data::Text(text) = &node.data {
            let parsed = TmpfsArg::parse(text.as_ref());
            return parsed.map(Self).map_err(|error| Problem::at(node, error.to_string()));
        }
        let TmpfsTable { target, size } = TmpfsTable::read(node)?;
        match size.unwrap_or(DEFAULT_TMPFS_SIZE) {
            Size(0) => Err(Problem::at(node, "a size of 0 leaves no room")),
            size => Ok(Self(TmpfsArg { target, size })),
        }
    }

    fn write(&self) -> Data {
        TmpfsTable { target: self.0.target.clone(), size: Some(self.0.size) }.write()
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "type": "string" }, TmpfsTable::schema()] })
    }
}

/// What the root directory inside is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootfsSetting {
    Host,
    Directory(HostPath),
}

impl From<OsText> for RootfsSetting {
    fn from(text: OsText) -> Self {
        if text.as_bytes() == b"host" { Self::Host } else { Self::Directory(HostPath(text)) }
    }
}

impl Value for RootfsSetting {
    fn read(node: &Node) -> Result<Self, Problem> {
        HostPath::read(node).map(|path| path.0.into())
    }

    fn write(&self) -> Data {
        match self {
            Self::Host => Data::Text("host".into()),
            Self::Directory(path) => path.write(),
        }
    }

    fn schema() -> Json {
        HostPath::schema()
    }

    fn rebase(&mut self, base: &Base) {
        match self {
            Self::Host => {}
            Self::Directory(path) => path.rebase(base),
        }
    }
}

/// The path of a shell inside. It becomes a field of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellPath(pub String);

impl Value for ShellPath {
    fn read(node: &Node) -> Result<Self, Problem> {
        let path = String::read(node)?;
        if path.contains(':') || path.chars().any(char::is_control) {
            return Err(Problem::at(node, "a shell's path has no colon and no control character"));
        }
        match path.starts_with('/') && *crate::paths::clean(path.as_ref()).as_os_str() == *path {
            true => Ok(Self(path)),
            false => Err(Problem::at(node, "is not an absolute path, such as \"/bin/bash\"")),
        }
    }

    fn write(&self) -> Data {
        Data::Text(self.0.clone())
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^/[^:]+$" })
    }
}

/// Whose name commits made inside have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GitIdentitySetting {
    /// The operator's, as the git configuration of the host's user has it.
    Host,
    None,
    Named(GitIdentity),
}

table! {
    /// An author.
    struct GitIdentityTable {
        /// Of the author.
        name: String,
        /// The author's address.
        email: String,
    }
}

impl Value for GitIdentitySetting {
    fn read(node: &Node) -> Result<Self, Problem> {
        match node.data {
            Data::Boolean(true) => return Ok(Self::Host),
            Data::Boolean(false) => return Ok(Self::None),
            Data::Table(_) => {}
            _ => {
                return Err(Problem::wrong_type(
                    node,
                    "true, false, or { name = \"…\", email = \"…\" }",
                ));
            }
        }
        let GitIdentityTable { name, email } = GitIdentityTable::read(node)?;
        let identity = GitIdentity::new(Some(&name), Some(&email));
        let written = GitIdentity { name: Some(name), email: Some(email) };
        match identity.filter(|identity| *identity == written) {
            Some(identity) => Ok(Self::Named(identity)),
            None => Err(Problem::at(
                node,
                "name and email are short texts: not empty, no control characters, no spaces around them",
            )),
        }
    }

    fn write(&self) -> Data {
        match self {
            Self::Host => Data::Boolean(true),
            Self::None => Data::Boolean(false),
            Self::Named(GitIdentity { name, email }) => {
                let text = |value: &Option<String>| value.clone().unwrap_or_default();
                GitIdentityTable { name: text(name), email: text(email) }.write()
            }
        }
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "type": "boolean" }, GitIdentityTable::schema()] })
    }
}

/// A relative path in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenName(pub OsText);

impl HiddenName {
    pub fn parse(name: &OsText) -> Result<Self, String> {
        match crate::paths::inner(name.as_path()) {
            Some(inner) => Ok(Self(inner.into())),
            None => {
                Err(format!("\"{name}\" must be a name in the workspace: relative, without \"..\""))
            }
        }
    }
}

impl Value for HiddenName {
    fn read(node: &Node) -> Result<Self, Problem> {
        Self::parse(&OsText::read(node)?).map_err(|why| Problem::at(node, why))
    }

    fn write(&self) -> Data {
        self.0.write()
    }

    fn schema() -> Json {
        OsText::schema()
    }
}

/// The name of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableName(pub String);

impl Value for VariableName {
    fn read(node: &Node) -> Result<Self, Problem> {
        let name = String::read(node)?;
        env_file::check_name(name.as_bytes()).map(Self).map_err(|why| Problem::at(node, why))
    }

    fn write(&self) -> Data {
        Data::Text(self.0.clone())
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[^=\\s]+$" })
    }
}

/// Variables and their values.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Variables(pub BTreeMap<String, OsText>);

impl Value for Variables {
    fn read(node: &Node) -> Result<Self, Problem> {
        let map = BTreeMap::<String, OsText>::read(node)?;
        for name in map.keys() {
            env_file::check_name(name.as_bytes()).map_err(|why| Problem::at(node, why))?;
        }
        Ok(Self(map))
    }

    fn write(&self) -> Data {
        self.0.write()
    }

    fn schema() -> Json {
        BTreeMap::<String, OsText>::schema()
    }

    fn merge(slot: &mut Option<Self>, higher: Self, key: &str, merge: &mut Merge<'_>) {
        let mut map = slot.take().map(|variables| variables.0);
        Value::merge(&mut map, higher.0, key, merge);
        *slot = map.map(Self);
    }
}

/// Letters, digits, `_`, `.` and `-`, at most 64 of them, the first a letter or a digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName(String);

impl RunName {
    const MAX: usize = 64;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for RunName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let sign = |b: u8| matches!(b, b'_' | b'.' | b'-');
        let good = name.bytes().all(|b| b.is_ascii_alphanumeric() || sign(b))
            && name.bytes().next().is_some_and(|b| !sign(b))
            && name.len() <= Self::MAX;
        if good {
            return Ok(Self(name.to_owned()));
        }
        Err(format!(
            "\"{}\" is not a valid name; letters, digits, _, . and - are allowed, at most {} of them, the \
             first a letter or a digit",
            escape(name.as_bytes()),
            Self::MAX
        ))
    }
}

impl Value for RunName {
    fn read(node: &Node) -> Result<Self, Problem> {
        String::read(node)?.parse().map_err(|why: String| Problem::at(node, why))
    }

    fn write(&self) -> Data {
        Data::Text(self.0.clone())
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$" })
    }
}
