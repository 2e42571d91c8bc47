//! A temporary directory with a Belljar home, a user and a project.

// Every test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_record::home::Home;
use belljar_run::config::{self, ConfigError, Flag, FlagError, GivenFlags, Invocation, Loaded};
use belljar_spec::egress::Reach;
use belljar_spec::{MainCommand, Terminal};
use tempfile::TempDir;

/// The flags of a run, as they are written. The last value of a flag that takes one counts.
#[derive(Clone)]
pub(crate) struct Flags {
    given: Vec<(&'static str, OsString)>,
    terminal: Terminal,
}

impl Default for Flags {
    fn default() -> Self {
        Self { given: Vec::new(), terminal: Terminal::None }
    }
}

impl Flags {
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        if Flag::named(name).is_some_and(|flag| !flag.is_repeatable()) {
            self = self.without(name);
        }
        self.given.push((name, value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.given.retain(|(given, _)| *given != name);
        self
    }

    pub(crate) fn terminal(self, terminal: Terminal) -> Self {
        Self { terminal, ..self }
    }

    fn parse(&self) -> Result<Vec<config::Override>, FlagError> {
        let mut given = GivenFlags::default();
        let (assigned, flags): (Vec<_>, Vec<_>) =
            self.given.iter().cloned().partition(|(name, _)| *name == "-c");
        given.assignments =
            assigned.into_iter().map(|(_, text)| text.into_string().unwrap()).collect();
        for flag in config::FLAGS {
            let of_flag = flags.iter().filter(|(name, _)| *name == flag.name);
            given.add(flag, of_flag.map(|(_, value)| value.clone()));
        }
        assert!(flags.iter().all(|(name, _)| Flag::named(name).is_some()), "an unknown flag");
        given.parse(Reach::Listed)
    }
}

pub(crate) struct World {
    temp: TempDir,
    pub(crate) home: Home,
    pub(crate) env: BTreeMap<OsString, OsString>,
}

impl World {
    pub(crate) fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let root = fs::canonicalize(temp.path()).unwrap();
        let user = root.join("user");
        fs::create_dir_all(user.join("project/sub")).unwrap();
        let home = Home::open_at(root.join("state")).unwrap();
        let env = BTreeMap::from([("HOME".into(), user.into_os_string())]);
        Self { temp, home, env }
    }

    pub(crate) fn root(&self) -> PathBuf {
        fs::canonicalize(self.temp.path()).unwrap()
    }

    pub(crate) fn user(&self) -> PathBuf {
        self.root().join("user")
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.user().join("project")
    }

    pub(crate) fn write(&self, path: &str, content: &str) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The manifest of the project.
    pub(crate) fn manifest(&self, content: &str) -> PathBuf {
        self.write("user/project/belljar.toml", content)
    }

    pub(crate) fn invocation(&self, flags: Flags) -> Invocation {
        self.invocation_in(&self.project(), flags)
    }

    pub(crate) fn invocation_in(&self, cwd: &Path, flags: Flags) -> Invocation {
        self.parsed(cwd, &flags).unwrap()
    }

    fn parsed(&self, cwd: &Path, flags: &Flags) -> Result<Invocation, ConfigError> {
        let command = MainCommand::Argv(vec!["true".into()]);
        let mut invocation = Invocation::new(cwd.to_owned(), self.env.clone(), command);
        invocation.overrides = flags.parse()?;
        invocation.terminal = flags.terminal;
        invocation.system = self.root().join("etc");
        Ok(invocation)
    }

    pub(crate) fn load(&self, flags: Flags) -> Result<Loaded, ConfigError> {
        config::load(&self.parsed(&self.project(), &flags)?, &self.home)
    }

    /// The message of a refusal.
    pub(crate) fn refused(&self, flags: Flags) -> String {
        self.load(flags).unwrap_err().to_string()
    }

    pub(crate) fn trust(&self, path: &Path) {
        let examined = config::trust::examine(path, &self.env, &self.home).unwrap();
        config::trust::trust(&examined, &self.home).unwrap();
    }
}
