//! Configures and starts sandboxes, with the same layers, ceiling and trust as the command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_record::home::Home;
use belljar_run::config::{
    self, ConfigFiles, FlagError, Invocation, Loaded, ManifestSource, Override,
};
use belljar_spec::egress::{PublishSpec, SecretValue};
use belljar_spec::env_file;
use belljar_spec::manifest::{
    Added, HiddenName, HostPath, Limit, MountEntry, Pull, TmpfsEntry, VariableName, Waive,
    Workspace, WorkspaceMode,
};
use belljar_spec::mount_arg::TmpfsArg;
use belljar_spec::paths::checked;
use belljar_spec::wire::control::{Bond, Keep, LaunchRequest, StopReport, Streams};
use belljar_spec::{
    BackendChoice, BackendName, Clause, Cpus, MainCommand, Manifest, MountMode, Origin, OsText,
    Posture, RunId, RunSpec, Size, User,
};

use super::client::{Client, LaunchedRun};
use super::connector::{Connector, Destination, Supervisors};
use super::error::Error;
use super::exec::collect;
use super::output::{DEFAULT_OUTPUT_LIMIT, Output};
use super::secret::Secret;
use super::{Ownership, Sandbox};

/// Settings of a sandbox; see [`Sandbox::builder`]. Relative paths start in the current directory.
#[derive(Clone, Debug, Default)]
pub struct SandboxBuilder {
    values: Manifest,
    assignments: Vec<String>,
    /// The first setting that cannot be used, which is the error of the start.
    refused: Option<(&'static str, String)>,
    manifest: Option<PathBuf>,
    no_config: bool,
    home: Option<PathBuf>,
    executable: Option<PathBuf>,
    connector: Option<Arc<dyn Connector>>,
    output_limit: Option<usize>,
}

/// The result of a run of one command.
#[derive(Clone, Debug)]
pub struct RunOutput {
    pub run: RunId,
    pub home: PathBuf,
    pub posture: Posture,
    pub output: Output,
    pub report: StopReport,
}

impl SandboxBuilder {
    /// The default is `Auto`: the jail, docker, podman, in this order; see [`Sandbox::skipped_backends`].
    pub fn backend(mut self, backend: BackendChoice) -> Self {
        self.values.sandbox.backend = Some(backend);
        self
    }

    /// Backends to try, in order, if the first is not available or does not enforce a required clause.
    pub fn fallback(mut self, backends: impl IntoIterator<Item = BackendName>) -> Self {
        self.values.sandbox.fallback = Some(backends.into_iter().collect());
        self
    }

    /// The directory to work in. The default is the manifest's, or the current directory, `rw`.
    pub fn workspace(self, path: impl AsRef<Path>, mode: MountMode) -> Self {
        self.set("workspace", |values| {
            let workspace = &mut values.sandbox.workspace;
            workspace.path = Some(host_path(path.as_ref())?);
            workspace.mode = Some(mode.into());
            Ok(())
        })
    }

    /// Makes the workspace writable inside and leaves it unchanged outside, whichever directory it is.
    pub fn overlay(mut self) -> Self {
        self.values.sandbox.workspace.mode = Some(WorkspaceMode::Overlay);
        self
    }

    pub fn no_workspace(mut self) -> Self {
        let none = WorkspaceMode::None;
        self.values.sandbox.workspace = Workspace { mode: Some(none), ..Workspace::default() };
        self
    }

    pub fn mount(
        self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        mode: MountMode,
    ) -> Self {
        self.set("mount", |values| {
            let source = host_path(source.as_ref())?;
            let target = checked(target.as_ref().as_os_str())?;
            let mount = MountEntry { source, target, mode: Some(mode) };
            Added::add(&mut values.sandbox.mounts, mount);
            Ok(())
        })
    }

    /// Mounts a file system in memory.
    pub fn tmpfs(self, target: impl AsRef<Path>, bytes: u64) -> Self {
        self.set("tmpfs", |values| {
            let target = checked(target.as_ref().as_os_str())?;
            if bytes == 0 {
                return Err("a size of 0 leaves no room".into());
            }
            let tmpfs = TmpfsEntry(TmpfsArg { target, size: Size(bytes) });
            Added::add(&mut values.sandbox.tmpfs, tmpfs);
            Ok(())
        })
    }

    /// Mounts an install prefix read-only at the same path, and adds its `bin` to `PATH`.
    pub fn tool(self, prefix: impl AsRef<Path>) -> Self {
        self.set("tool", |values| {
            Added::add(&mut values.sandbox.tools, host_path(prefix.as_ref())?);
            Ok(())
        })
    }

    /// Allows a mount of this sensitive path.
    pub fn allow_source(self, path: impl AsRef<Path>) -> Self {
        self.set("allow_source", |values| {
            Added::add(&mut values.sandbox.allow_source, host_path(path.as_ref())?);
            Ok(())
        })
    }

    /// Lets the run write this control file of an `rw` workspace (`.git/config`).
    pub fn allow_control(self, name: impl Into<OsString>) -> Self {
        self.set("allow_control", |values| {
            let name = HiddenName::parse(&checked(&name.into())?)?;
            Added::add(&mut values.sandbox.allow_control, name);
            Ok(())
        })
    }

    /// Hides this file of the workspace.
    pub fn hide(self, name: impl Into<OsString>) -> Self {
        self.set("hide", |values| {
            let name = HiddenName::parse(&checked(&name.into())?)?;
            Added::add(&mut values.sandbox.hide, name);
            Ok(())
        })
    }

    /// The working directory of commands.
    pub fn workdir(self, path: impl AsRef<Path>) -> Self {
        self.set("workdir", |values| {
            values.sandbox.workdir = Some(checked(path.as_ref().as_os_str())?);
            Ok(())
        })
    }

    /// The root file system: `host`, or a directory.
    pub fn rootfs(self, path: impl AsRef<Path>) -> Self {
        self.set("rootfs", |values| {
            values.sandbox.rootfs = Some(checked(path.as_ref().as_os_str())?.into());
            Ok(())
        })
    }

    /// The image that the sandbox starts from. Without one the jail uses the host's programs.
    pub fn image(mut self, name: impl Into<String>) -> Self {
        self.values.sandbox.image = Some(name.into());
        self
    }

    /// When the image is pulled. The default is [`Pull::Missing`].
    pub fn pull(mut self, when: Pull) -> Self {
        self.values.sandbox.pull = Some(when);
        self
    }

    /// The engine's runtime, such as `runsc`.
    pub fn oci_runtime(mut self, name: impl Into<String>) -> Self {
        self.values.sandbox.oci_runtime = Some(name.into());
        self
    }

    /// The ids inside; not 0.
    pub fn user(self, uid: u32, gid: u32) -> Self {
        self.set("user", |values| {
            values.sandbox.user = Some(User::new(uid, gid)?);
            Ok(())
        })
    }

    pub fn env(self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.set("env", |values| {
            let name = env_file::check_name(name.as_ref().as_bytes())?;
            let value = env_file::check_value(&name, value.as_ref().as_bytes())?;
            values.sandbox.env.get_or_insert_default().0.insert(name, value);
            Ok(())
        })
    }

    /// Passes the host's value of this variable.
    pub fn pass_env(self, name: impl Into<OsString>) -> Self {
        self.set("pass_env", |values| {
            let name = env_file::check_name(name.into().as_bytes())?;
            Added::add(&mut values.sandbox.pass_env, VariableName(name));
            Ok(())
        })
    }

    /// Allows connections to `host[:port]`; no other host can be reached.
    pub fn allow_host(mut self, rule: impl Into<String>) -> Self {
        self.values.network.allow.get_or_insert_default().push(rule.into());
        self
    }

    /// Adds a credential to requests, which the run never sees.
    pub fn secret(self, secret: Secret) -> Self {
        self.set("secret", |values| {
            Added::add(&mut values.secret, secret.setting()?);
            Ok(())
        })
    }

    /// Publishes a port of the run on the host.
    pub fn publish(mut self, port: PublishSpec) -> Self {
        self.values.network.publish.get_or_insert_default().push(port.into());
        self
    }

    /// Memory limit of the whole run in bytes, swap included.
    pub fn memory(self, bytes: u64) -> Self {
        self.set("memory", |values| {
            values.limits.memory = Some(Limit::at(Size(bytes))?);
            Ok(())
        })
    }

    pub fn cpus(self, count: f64) -> Self {
        self.set("cpus", |values| {
            let cpus = Cpus::from_count(count).map_err(|error| error.to_string())?;
            values.limits.cpus = Some(Limit::At(cpus));
            Ok(())
        })
    }

    /// Limit of processes and threads.
    pub fn pids(self, count: u32) -> Self {
        self.set("pids", |values| {
            values.limits.pids = Some(Limit::at(count)?);
            Ok(())
        })
    }

    /// Bytes that may be written to disk.
    pub fn disk(self, bytes: u64) -> Self {
        self.set("disk", |values| {
            values.limits.disk = Some(Limit::at(Size(bytes))?);
            Ok(())
        })
    }

    /// How long the sandbox may live.
    pub fn timeout(self, time: Duration) -> Self {
        self.set("timeout", |values| {
            values.limits.time = Some(Limit::at(time.into())?);
            Ok(())
        })
    }

    /// Time between TERM and KILL when the run is stopped.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.values.limits.stop_timeout = Some(time.into());
        self
    }

    pub fn name(self, name: impl Into<String>) -> Self {
        self.set("name", |values| {
            values.sandbox.name = Some(name.into().parse()?);
            Ok(())
        })
    }

    pub fn label(self, key: &str, value: &str) -> Self {
        self.set("label", |values| {
            if key.is_empty() {
                return Err("the key is empty".into());
            }
            let labels = values.sandbox.labels.get_or_insert_default();
            labels.insert(key.to_owned(), value.to_owned());
            Ok(())
        })
    }

    /// Refuses to start unless this clause is enforced.
    pub fn require(mut self, clause: Clause) -> Self {
        Added::add(&mut self.values.policy.require, clause);
        self
    }

    /// Starts even if this clause is not enforced; the reason is recorded.
    pub fn waive(self, clause: Clause, reason: &str) -> Self {
        self.set("waive", |values| {
            Waive::check(clause.name(), reason)?;
            let waivers = values.policy.waive.get_or_insert_default();
            waivers.0.insert(clause.name().to_owned(), reason.to_owned());
            Ok(())
        })
    }

    /// Sets any manifest key, as `-c` does: `limits.memory=2g`. The other methods override it.
    pub fn setting(mut self, assignment: impl Into<String>) -> Self {
        self.assignments.push(assignment.into());
        self
    }

    /// Uses and trusts this manifest. The default is the nearest one.
    pub fn manifest(mut self, path: impl Into<PathBuf>) -> Self {
        self.manifest = Some(path.into());
        self
    }

    /// Uses no manifest and no configuration file; the administrator's ceiling still applies.
    pub fn no_config(mut self) -> Self {
        self.no_config = true;
        self
    }

    /// Belljar's home. The default is `BELLJAR_HOME`, or the user's.
    pub fn home(mut self, path: impl Into<PathBuf>) -> Self {
        self.home = Some(path.into());
        self
    }

    /// The belljar executable. The default is that of [`super::find_executable`].
    pub fn belljar(mut self, path: impl Into<PathBuf>) -> Self {
        self.executable = Some(path.into());
        self
    }

    /// How to connect to the supervisor: in tests, a [`crate::testing::FakeBackend`].
    pub fn connector(mut self, connector: impl Connector + 'static) -> Self {
        self.connector = Some(Arc::new(connector));
        self
    }

    /// How many bytes of each stream [`SandboxBuilder::run`] keeps.
    pub fn limit_output(mut self, bytes: usize) -> Self {
        self.output_limit = Some(bytes);
        self
    }

    /// Resolves the settings without starting anything.
    pub fn build_spec(&self) -> Result<RunSpec, Error> {
        self.resolve(MainCommand::None).map(|resolved| resolved.spec)
    }

    /// Starts a sandbox that lives until it is stopped or dropped.
    pub async fn start(self) -> Result<Sandbox, Error> {
        let request = (Keep::UntilStopped, Bond::EndsWithConnection, Streams::Unwatched);
        let (client, launched, home) = self.launch(MainCommand::None, request).await?;
        let LaunchedRun { backend, posture, skipped_backends, .. } = launched;
        let ownership = Ownership::Owner { backend, posture, skipped_backends };
        Ok(Sandbox::new(client, launched.run, home, ownership))
    }

    /// Runs one command in a new sandbox, which ends with the command.
    pub async fn run<A: Into<OsString>>(
        self,
        argv: impl IntoIterator<Item = A>,
    ) -> Result<RunOutput, Error> {
        let limit = self.output_limit.unwrap_or(DEFAULT_OUTPUT_LIMIT);
        let argv = argv.into_iter().map(|argument| OsText::from(argument.into().as_os_str()));
        let command = MainCommand::Argv(argv.collect());
        let request = (Keep::WhileCommandRuns, Bond::EndsWithConnection, Streams::Output);
        let (client, launched, home) = self.launch(command, request).await?;
        let command = launched.command.ok_or(Error::lost("the command is not followed"))?;
        let output = collect(command, limit).await?;
        let report = client.stopped().await?;
        Ok(RunOutput { run: launched.run, home, posture: launched.posture, output, report })
    }

    async fn launch(
        self,
        command: MainCommand,
        (keep, bond, streams): (Keep, Bond, Streams),
    ) -> Result<(Client, LaunchedRun, PathBuf), Error> {
        let connector = self.choose_connector();
        // In a blocking task: it reads files.
        let resolve = move || self.resolve(command).and_then(Resolved::with_secrets);
        let resolved = tokio::task::spawn_blocking(resolve).await;
        let (home, spec, secrets) = resolved
            .map_err(|error| Error::io("read the settings")(std::io::Error::other(error)))??;
        let mut client = Client::over(&*connector, &Destination::New).await?;
        let home_text = home.as_path().into();
        let request = LaunchRequest {
            home: home_text,
            spec,
            keep,
            bond,
            streams,
            secrets,
            chosen: None,
            resumed_from: None,
            ttl_ms: None,
        };
        let launched = client.launch(request, None).await?;
        Ok((client, launched, home))
    }

    fn choose_connector(&self) -> Arc<dyn Connector> {
        match (&self.connector, &self.executable) {
            (Some(connector), _) => Arc::clone(connector),
            (None, Some(path)) => Arc::new(Supervisors::with_executable(path)),
            (None, None) => Arc::new(Supervisors::new()),
        }
    }

    /// Applies a setting that is checked here.
    fn set(
        mut self,
        method: &'static str,
        apply: impl FnOnce(&mut Manifest) -> Result<(), String>,
    ) -> Self {
        if let Err(why) = apply(&mut self.values) {
            self.refused.get_or_insert((method, why));
        }
        self
    }

    fn overrides(&self) -> Result<Vec<Override>, FlagError> {
        if let Some((method, why)) = &self.refused {
            return Err(FlagError::Value { flag: method, why: why.clone() });
        }
        let assigned = self.assignments.iter().map(|text| Override::assigned(text));
        let mut overrides: Vec<Override> = assigned.collect::<Result<_, FlagError>>()?;
        overrides.push(Override { origin: Origin::Program, values: self.values.clone() });
        Ok(overrides)
    }

    fn resolve(&self, command: MainCommand) -> Result<Resolved, Error> {
        let env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let cwd = std::env::current_dir().map_err(Error::io("find the current directory"))?;
        let mut invocation = Invocation::new(cwd, env, command);
        invocation.overrides = self.overrides().map_err(config::ConfigError::from)?;
        if self.no_config {
            invocation.source = ManifestSource::None;
            invocation.config_files = ConfigFiles::Ignore;
        } else if let Some(file) = &self.manifest {
            invocation.source = ManifestSource::File(file.clone());
        }
        let home = self.home.clone().or_else(|| self.choose_connector().home());
        let home = match home {
            Some(path) => Home::open_at(path)?,
            None => Home::open(&invocation.env)?,
        };
        let Loaded { spec, .. } = config::load(&invocation, &home)?;
        Ok(Resolved { home: home.path().to_owned(), spec, invocation })
    }
}

/// The resolved settings of a launch.
struct Resolved {
    home: PathBuf,
    spec: RunSpec,
    invocation: Invocation,
}

impl Resolved {
    /// Reads the values of secrets, which may run a program.
    fn with_secrets(self) -> Result<(PathBuf, RunSpec, Vec<SecretValue>), Error> {
        let Self { home, spec, invocation } = self;
        let secrets = config::secret_values(&spec, &invocation.env, &invocation.cwd)
            .map_err(config::ConfigError::from)?;
        Ok((home, spec, secrets))
    }
}

fn host_path(path: &Path) -> Result<HostPath, String> {
    checked(path.as_os_str()).map(HostPath)
}
