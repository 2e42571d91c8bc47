//! Settings made from a few lines of text.

// Every test file takes what it needs.
#![allow(dead_code)]

use std::path::PathBuf;

use belljar_spec::{
    CeilingFile, HostFacts, Layer, Manifest, Origin, Request, ResolveError, RunSpec, Settings,
    layers, resolve,
};

/// Half of it is the built-in memory limit.
pub(crate) const MEMORY: u64 = 16 << 30;
pub(crate) const MANIFEST_DIR: &str = "/proj/p";
pub(crate) const CWD: &str = "/proj/p/sub";
pub(crate) const HOME: &str = "/home/u";

pub(crate) fn manifest(text: &str) -> Manifest {
    Manifest::parse(text.as_bytes(), &"belljar.toml".into()).unwrap()
}

/// Layers by name, above the built-in one.
#[derive(Default)]
pub(crate) struct Given<'a> {
    pub(crate) system: &'a str,
    pub(crate) user: &'a str,
    pub(crate) manifest: &'a str,
    pub(crate) variables: &'a [(&'a str, &'a str)],
    pub(crate) flags: &'a [&'a str],
    pub(crate) ceiling: Option<&'a str>,
}

impl Given<'_> {
    pub(crate) fn settings(&self) -> Settings {
        let layer = |origin, directory: &str, values| Layer {
            origin,
            directory: PathBuf::from(directory),
            values,
        };
        let mut all = vec![layer(Origin::BuiltIn, "/", layers::built_in(Some(MEMORY)))];
        let files = [
            (Origin::System("/etc/belljar/config.toml".into()), "/etc/belljar", self.system),
            (Origin::User("/home/u/.config/c.toml".into()), "/home/u/.config", self.user),
            (Origin::Manifest("/proj/p/belljar.toml".into()), MANIFEST_DIR, self.manifest),
        ];
        for (origin, directory, text) in files {
            all.push(layer(origin, directory, manifest(text)));
        }
        for (name, value) in self.variables {
            let layers::Variable::Setting(values) = layers::from_variable(name, value).unwrap()
            else {
                continue;
            };
            all.push(layer(Origin::Variable((*name).to_owned()), CWD, *values));
        }
        for flag in self.flags {
            let values = layers::from_assignment(flag).unwrap();
            all.push(layer(Origin::Flag("-c".into()), CWD, values));
        }
        let path = "/etc/belljar/policy.toml".into();
        let ceiling = self.ceiling.map(|text| CeilingFile::parse(text.as_bytes(), &path).unwrap());
        Settings::merge(all, ceiling, Some(HOME.as_ref()))
    }

    pub(crate) fn resolve(&self) -> Result<RunSpec, ResolveError> {
        resolve(&self.settings(), &request(), &host())
    }
}

pub(crate) fn request() -> Request {
    Request {
        manifest: Some("/proj/p/belljar.toml".into()),
        ..Request::new(belljar_spec::MainCommand::Argv(vec!["true".into()]), MANIFEST_DIR.into())
    }
}

pub(crate) fn host() -> HostFacts {
    let env = [("TERM", "xterm"), ("SECRET", "s"), ("LANG", "de_DE"), ("PASSED", "from host")];
    HostFacts {
        memory_total: Some(MEMORY),
        home: Some(HOME.into()),
        cwd: CWD.into(),
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        git_identity: None,
    }
}
