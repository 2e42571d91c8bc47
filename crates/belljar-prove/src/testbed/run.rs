//! Describes a run: flags, the probe and its arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::TestBed;
use crate::probe::PROBE;

/// One run of the command, as it is going to be.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(super) flags: Vec<OsString>,
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) settings: Settings,
    pub(super) network: Network,
}

/// Which manifest the run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    None,
    Manifest(PathBuf),
    /// The manifest in this directory, in which the launcher is started; it is not trusted.
    Found(PathBuf),
}

/// Which network the launcher is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Hosts,
    /// One of the stage's own.
    World,
}

impl Run {
    /// A probe in a workspace that has one.
    pub(crate) fn of(workspace: &Path, probe: &str) -> Self {
        let mut spelled = workspace.as_os_str().to_owned();
        spelled.push(":rw");
        Self {
            flags: vec!["--workspace".into(), spelled],
            argv: vec!["/workspace/probe".into(), PROBE.into(), probe.into()],
            ..Self::nothing()
        }
    }

    /// No workspace; the probe is read-only at `/kit`.
    pub(crate) fn without_workspace(testbed: &TestBed, probe: &str) -> Self {
        let argv = vec!["/kit/probe".into(), PROBE.into(), probe.into()];
        let flags = vec!["--workspace".into(), "none".into()];
        Self { flags, argv, ..Self::nothing() }.mount(&testbed.kit(), "/kit")
    }

    /// The workspace comes from the settings; the probe is mounted read-only at `/kit`.
    pub(crate) fn without_own_workspace(testbed: &TestBed, probe: &str) -> Self {
        let argv = vec!["/kit/probe".into(), PROBE.into(), probe.into()];
        Self { argv, ..Self::nothing() }.mount(&testbed.kit(), "/kit")
    }

    /// With one read-only tree, and no command that would matter.
    pub(super) fn mounted(source: &Path) -> Self {
        let flags = vec!["--workspace".into(), "none".into()];
        Self { flags, argv: vec!["true".into()], ..Self::nothing() }.mount(source, "/kit")
    }

    fn nothing() -> Self {
        Self {
            flags: Vec::new(),
            argv: Vec::new(),
            env: Vec::new(),
            settings: Settings::None,
            network: Network::Hosts,
        }
    }

    /// The launcher, and so its proxy, is in the stage's own world; the probe is at `/kit`.
    pub(crate) fn in_world(testbed: &TestBed, probe: &str) -> Self {
        Self { network: Network::World, ..Self::without_workspace(testbed, probe) }
    }

    /// With this manifest, which is trusted.
    pub(crate) fn manifest(mut self, path: PathBuf) -> Self {
        self.settings = Settings::Manifest(path);
        self
    }

    /// Started in a tree, with whatever manifest is there.
    pub(crate) fn in_tree(mut self, tree: &Path) -> Self {
        self.settings = Settings::Found(tree.to_owned());
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    pub(crate) fn flag(mut self, flag: impl AsRef<OsStr>) -> Self {
        self.flags.push(flag.as_ref().to_owned());
        self
    }

    /// Read-only.
    pub(crate) fn mount(self, source: &Path, target: &str) -> Self {
        let mut spelled = source.as_os_str().to_owned();
        spelled.push(":");
        spelled.push(target);
        self.flag("-v").flag(spelled)
    }

    /// A variable of the launcher, which is not meant to be the command's.
    pub(crate) fn launcher_env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }
}
