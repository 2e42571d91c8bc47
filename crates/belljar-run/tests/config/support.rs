//! A temporary directory with a Belljar home, a user and a project.

// Every test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_record::home::Home;
use belljar_run::config::{self, ConfigError, Flags, Invocation, Loaded};
use tempfile::TempDir;

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
        let command = vec!["true".into()];
        let flags = Flags { command, ..flags };
        let mut invocation = Invocation::new(cwd.to_owned(), self.env.clone(), flags);
        invocation.system = self.root().join("etc");
        invocation
    }

    pub(crate) fn load(&self, flags: Flags) -> Result<Loaded, ConfigError> {
        config::load(&self.invocation(flags), &self.home)
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
