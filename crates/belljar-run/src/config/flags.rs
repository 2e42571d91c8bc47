//! Turns the flags of `run` into layers of settings.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::secret_arg;
use belljar_spec::egress::{PublishSpec, Reach};
use belljar_spec::env_file::{self, EnvLine};
use belljar_spec::layers;
use belljar_spec::manifest::{
    Added, HiddenName, HostPath, MountEntry, Place, Prefer, TmpfsEntry, VariableName, Variables,
    Waive,
};
use belljar_spec::mount_arg::{BindArg, MountArg, TmpfsArg, WorkspaceArg};
use belljar_spec::text::escape;
use belljar_spec::{Layer, Manifest, ManifestError, Origin, OsText, Screen, Stdin, Terminal};

/// The flags as written on the command line.
#[derive(Clone, Debug)]
pub struct Flags {
    pub backend: Option<String>,
    pub image: Option<String>,
    pub pull: Option<String>,
    pub oci_runtime: Option<String>,
    pub rootfs: Option<OsString>,
    pub volumes: Vec<OsString>,
    pub mounts: Vec<OsString>,
    pub tmpfs: Vec<OsString>,
    pub tools: Vec<OsString>,
    pub workspace: Option<OsString>,
    pub workdir: Option<OsString>,
    pub hide: Vec<OsString>,
    pub allow_sources: Vec<OsString>,
    pub allow_control: Vec<OsString>,
    pub user: Option<String>,
    /// Only `none` is accepted.
    pub network: Option<String>,
    pub allow_hosts: Vec<String>,
    /// `[[ADDRESS:]HOST_PORT:]PORT`.
    pub publish: Vec<String>,
    /// `env=NAME,host=HOST,header=NAME` and so on.
    pub secrets: Vec<String>,
    pub reach: Reach,
    pub memory: Option<String>,
    pub cpus: Option<String>,
    pub pids_limit: Option<String>,
    pub disk: Option<String>,
    pub output: Option<String>,
    pub timeout: Option<String>,
    pub idle: Option<String>,
    pub stop_timeout: Option<String>,
    pub env: Vec<OsString>,
    pub env_files: Vec<OsString>,
    pub pass_env: Vec<OsString>,
    pub name: Option<String>,
    pub labels: Vec<String>,
    pub require: Vec<String>,
    pub waive: Vec<String>,
    /// `-c key=value`.
    pub settings: Vec<String>,
    /// `claude`, `codex`, `gemini` or `command`.
    pub agent: Option<String>,
    pub prompt: Option<String>,
    pub prompt_file: Option<OsString>,
    pub model: Option<String>,
    pub permissions: Option<String>,
    pub max_iterations: Option<String>,
    pub max_turns: Option<String>,
    pub max_cost_usd: Option<String>,
    pub max_tokens: Option<String>,
    pub command: Vec<OsString>,
    pub stdin: Stdin,
    pub terminal: Terminal,
    pub screen: Screen,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            backend: None,
            image: None,
            pull: None,
            oci_runtime: None,
            rootfs: None,
            volumes: Vec::new(),
            mounts: Vec::new(),
            tmpfs: Vec::new(),
            tools: Vec::new(),
            workspace: None,
            workdir: None,
            hide: Vec::new(),
            allow_sources: Vec::new(),
            allow_control: Vec::new(),
            user: None,
            network: None,
            allow_hosts: Vec::new(),
            publish: Vec::new(),
            secrets: Vec::new(),
            reach: Reach::Listed,
            memory: None,
            cpus: None,
            pids_limit: None,
            disk: None,
            output: None,
            timeout: None,
            idle: None,
            stop_timeout: None,
            env: Vec::new(),
            env_files: Vec::new(),
            pass_env: Vec::new(),
            name: None,
            labels: Vec::new(),
            require: Vec::new(),
            waive: Vec::new(),
            settings: Vec::new(),
            agent: None,
            prompt: None,
            prompt_file: None,
            model: None,
            permissions: None,
            max_iterations: None,
            max_turns: None,
            max_cost_usd: None,
            max_tokens: None,
            command: Vec::new(),
            stdin: Stdin::Null,
            terminal: Terminal::None,
            screen: Screen::NotTerminal,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    #[error("{flag}: {why}")]
    Value { flag: &'static str, why: String },
    #[error(transparent)]
    Setting(#[from] ManifestError),
}

impl Flags {
    /// One layer per flag, so that the origin of each key names its flag. `-c` comes first: a specific flag overrides
    /// it.
    pub(super) fn layers(&self, cwd: &Path) -> Result<Vec<Layer>, FlagError> {
        let mut layers = FlagLayers { cwd, layers: Vec::new() };
        for setting in &self.settings {
            layers.push("-c", layers::from_assignment(setting)?);
        }
        self.simple(&mut layers)?;
        self.sources(&mut layers)?;
        self.variables(&mut layers)?;
        self.network(&mut layers)?;
        self.policy(&mut layers)?;
        Ok(layers.layers)
    }

    /// Names after `-e` without a value that the host does not have.
    pub(super) fn passed_but_missing(&self, env: &BTreeMap<OsString, OsString>) -> Vec<String> {
        let passed = self.env.iter().filter(|text| !text.as_bytes().contains(&b'='));
        let missing = passed.filter(|name| !env.contains_key(*name));
        missing.map(|name| escape(name.as_bytes())).collect()
    }

    fn simple(&self, layers: &mut FlagLayers<'_>) -> Result<(), FlagError> {
        let texts = [
            ("--backend", "sandbox.backend", &self.backend),
            ("--image", "sandbox.image", &self.image),
            ("--pull", "sandbox.pull", &self.pull),
            ("--oci-runtime", "sandbox.oci_runtime", &self.oci_runtime),
            ("--user", "sandbox.user", &self.user),
            ("--name", "sandbox.name", &self.name),
            ("--memory", "limits.memory", &self.memory),
            ("--cpus", "limits.cpus", &self.cpus),
            ("--pids-limit", "limits.pids", &self.pids_limit),
            ("--disk", "limits.disk", &self.disk),
            ("--output", "limits.output", &self.output),
            ("--timeout", "limits.time", &self.timeout),
            ("--idle", "limits.idle", &self.idle),
            ("--stop-timeout", "limits.stop_timeout", &self.stop_timeout),
            ("--agent", "agent.kind", &self.agent),
            ("--prompt", "agent.prompt", &self.prompt),
            ("--model", "agent.model", &self.model),
            ("--permissions", "agent.permissions", &self.permissions),
            ("--max-iterations", "loop.max_iterations", &self.max_iterations),
            ("--max-turns", "loop.max_turns", &self.max_turns),
            ("--max-cost-usd", "loop.max_cost_usd", &self.max_cost_usd),
            ("--max-tokens", "loop.max_tokens", &self.max_tokens),
        ];
        for (flag, key, text) in texts {
            let Some(text) = text else { continue };
            let keys: Vec<String> = key.split('.').map(str::to_owned).collect();
            let place = Place::Flag(format!("{flag} {}", escape(text.as_bytes())));
            layers.push(flag, Manifest::from_setting(&keys, text, Prefer::Text, place)?);
        }
        for label in &self.labels {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            if key.is_empty() {
                return Err(wrong("--label", "the key is empty; use KEY=VALUE".into()));
            }
            let mut values = Manifest::default();
            values.sandbox.labels = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
            layers.push("--label", values);
        }
        Ok(())
    }

    fn sources(&self, layers: &mut FlagLayers<'_>) -> Result<(), FlagError> {
        if let Some(rootfs) = &self.rootfs {
            let mut values = Manifest::default();
            values.sandbox.rootfs = Some(text("--rootfs", rootfs)?.into());
            layers.push("--rootfs", values);
        }
        if let Some(workspace) = &self.workspace {
            let arg = WorkspaceArg::parse(workspace);
            let arg = arg.map_err(|error| wrong("--workspace", error.to_string()))?;
            let mut values = Manifest::default();
            values.sandbox.workspace.set(arg);
            layers.push("--workspace", values);
        }
        if let Some(workdir) = &self.workdir {
            let mut values = Manifest::default();
            values.sandbox.workdir = Some(text("--workdir", workdir)?);
            layers.push("--workdir", values);
        }
        for volume in &self.volumes {
            let arg =
                BindArg::parse(volume).map_err(|error| wrong("--volume", error.to_string()))?;
            layers.push("--volume", mount(MountArg::Bind(arg)));
        }
        for arg in &self.mounts {
            let arg = MountArg::parse(arg).map_err(|error| wrong("--mount", error.to_string()))?;
            layers.push("--mount", mount(arg));
        }
        for tmpfs in &self.tmpfs {
            let arg =
                TmpfsArg::parse(tmpfs).map_err(|error| wrong("--tmpfs", error.to_string()))?;
            layers.push("--tmpfs", mount(MountArg::Tmpfs(arg)));
        }
        for tool in &self.tools {
            let mut values = Manifest::default();
            values.sandbox.tools = Some(Added(vec![path("--tool", tool)?]));
            layers.push("--tool", values);
        }
        for source in &self.allow_sources {
            let mut values = Manifest::default();
            values.sandbox.allow_source = Some(Added(vec![path("--allow-source", source)?]));
            layers.push("--allow-source", values);
        }
        if let Some(file) = &self.prompt_file {
            let mut values = Manifest::default();
            values.agent.prompt_file = Some(path("--prompt-file", file)?);
            layers.push("--prompt-file", values);
        }
        for name in &self.hide {
            let name = HiddenName::parse(&text("--hide", name)?);
            let name = name.map_err(|why| wrong("--hide", why))?;
            let mut values = Manifest::default();
            values.sandbox.hide = Some(Added(vec![name]));
            layers.push("--hide", values);
        }
        for name in &self.allow_control {
            let name = HiddenName::parse(&text("--allow-control", name)?);
            let name = name.map_err(|why| wrong("--allow-control", why))?;
            let mut values = Manifest::default();
            values.sandbox.allow_control = Some(Added(vec![name]));
            layers.push("--allow-control", values);
        }
        Ok(())
    }

    fn variables(&self, layers: &mut FlagLayers<'_>) -> Result<(), FlagError> {
        for file in &self.env_files {
            let mut values = Manifest::default();
            values.sandbox.env_file = Some(Added(vec![path("--env-file", file)?]));
            layers.push("--env-file", values);
        }
        for name in &self.pass_env {
            let name = env_file::check_name(name.as_bytes());
            layers.push("--pass-env", pass(name.map_err(|why| wrong("--pass-env", why))?));
        }
        for assignment in &self.env {
            let line = env_file::parse_assignment(assignment.as_bytes());
            match line.map_err(|why| wrong("--env", why))? {
                EnvLine::Set { name, value } => {
                    let mut values = Manifest::default();
                    values.sandbox.env = Some(Variables(BTreeMap::from([(name, value)])));
                    layers.push("--env", values);
                }
                EnvLine::Pass { name } => layers.push("--env", pass(name)),
            }
        }
        Ok(())
    }

    fn network(&self, layers: &mut FlagLayers<'_>) -> Result<(), FlagError> {
        match self.network.as_deref() {
            None => {}
            Some("none") if self.allow_hosts.is_empty() && self.reach == Reach::Listed => {
                let mut values = Manifest::default();
                values.network.allow = Some(Vec::new());
                values.network.allow_private = Some(Vec::new());
                layers.push("--network", values);
            }
            Some("none") => {
                let why = "\"none\" contradicts --allow-host and --learn; remove one of them";
                return Err(wrong("--network", why.into()));
            }
            Some(other) => {
                let why = format!(
                    "takes only \"none\", not \"{}\"; use --allow-host HOST to open one host",
                    escape(other.as_bytes())
                );
                return Err(wrong("--network", why));
            }
        }
        if !self.allow_hosts.is_empty() {
            let mut values = Manifest::default();
            values.network.allow = Some(self.allow_hosts.clone());
            layers.push("--allow-host", values);
        }
        if !self.publish.is_empty() {
            for port in &self.publish {
                PublishSpec::parse(port).map_err(|why| wrong("--publish", why))?;
            }
            let mut values = Manifest::default();
            values.network.publish = Some(self.publish.clone());
            layers.push("--publish", values);
        }
        for secret in &self.secrets {
            let secret = secret_arg::parse(secret).map_err(|why| wrong("--secret", why))?;
            let secret = Some(Added(vec![secret]));
            layers.push("--secret", Manifest { secret, ..Manifest::default() });
        }
        Ok(())
    }

    fn policy(&self, layers: &mut FlagLayers<'_>) -> Result<(), FlagError> {
        for clause in &self.require {
            let clause = clause.parse::<belljar_spec::Clause>();
            let clause = clause.map_err(|error| wrong("--require", error.to_string()))?;
            let mut values = Manifest::default();
            values.policy.require = Some(Added(vec![clause]));
            layers.push("--require", values);
        }
        for waiver in &self.waive {
            let (clause, reason) = waiver.split_once('=').unwrap_or((waiver, ""));
            Waive::check(clause, reason).map_err(|why| wrong("--waive", why))?;
            let mut values = Manifest::default();
            let waive = BTreeMap::from([(clause.to_owned(), reason.to_owned())]);
            values.policy.waive = Some(Waive(waive));
            layers.push("--waive", values);
        }
        Ok(())
    }
}

struct FlagLayers<'a> {
    cwd: &'a Path,
    layers: Vec<Layer>,
}

impl FlagLayers<'_> {
    fn push(&mut self, flag: &str, values: Manifest) {
        let origin = Origin::Flag(flag.to_owned());
        self.layers.push(Layer { origin, directory: self.cwd.to_owned(), values });
    }
}

fn wrong(flag: &'static str, why: String) -> FlagError {
    FlagError::Value { flag, why }
}

fn mount(arg: MountArg) -> Manifest {
    let mut values = Manifest::default();
    match arg {
        MountArg::Bind(BindArg { source, target, mode }) => {
            let entry = MountEntry { source: HostPath(source), target, mode: Some(mode) };
            values.sandbox.mounts = Some(Added(vec![entry]));
        }
        MountArg::Tmpfs(arg) => values.sandbox.tmpfs = Some(Added(vec![TmpfsEntry(arg)])),
    }
    values
}

fn pass(name: String) -> Manifest {
    let mut values = Manifest::default();
    values.sandbox.pass_env = Some(Added(vec![VariableName(name)]));
    values
}

fn text(flag: &'static str, value: &OsStr) -> Result<OsText, FlagError> {
    if value.is_empty() {
        return Err(wrong(flag, "the path is empty".into()));
    }
    if value.as_bytes().contains(&0) {
        return Err(wrong(flag, "the path contains a NUL byte".into()));
    }
    Ok(value.into())
}

fn path(flag: &'static str, value: &OsStr) -> Result<HostPath, FlagError> {
    text(flag, value).map(HostPath)
}
