//! Configures and starts sandboxes, with the same layers, ceiling and trust as the command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_record::home::Home;
use belljar_run::config::{self, ConfigFiles, Flags, Invocation, Loaded, ManifestSource};
use belljar_spec::egress::SecretValue;
use belljar_spec::wire::control::{Bond, Keep, LaunchRequest, StopReport, Streams};
use belljar_spec::{BackendChoice, BackendName, Clause, MountMode, Posture, RunId, RunSpec};

use super::client::{Client, LaunchedRun};
use super::connector::{Connector, Destination, Supervisors};
use super::error::Error;
use super::exec::collect;
use super::output::{DEFAULT_OUTPUT_LIMIT, Output};
use super::{Ownership, Sandbox};

/// Stands in for the command of a kept sandbox: the settings require one.
const NO_COMMAND: &str = "true";

/// Settings of a sandbox; see [`Sandbox::builder`]. Relative paths start in the current directory.
#[derive(Clone, Debug, Default)]
pub struct SandboxBuilder {
    flags: Flags,
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
        self.flags.backend = Some(backend.name().to_owned());
        self
    }

    /// Backends to try, in order, if the first is not available or does not enforce a required clause.
    pub fn fallback(mut self, backends: impl IntoIterator<Item = BackendName>) -> Self {
        let names: Vec<String> = backends.into_iter().map(|name| format!("\"{name}\"")).collect();
        self.flags.settings.push(format!("sandbox.fallback=[{}]", names.join(",")));
        self
    }

    /// The directory to work in. The default is the manifest's, or the current directory, `rw`.
    pub fn workspace(mut self, path: impl AsRef<Path>, mode: MountMode) -> Self {
        // With an explicit mode, neither a colon in the path nor the name "none" is special.
        let text = [path.as_ref().as_os_str().as_bytes(), b":", mode.name().as_bytes()].concat();
        self.flags.workspace = Some(OsStr::from_bytes(&text).to_owned());
        self
    }

    pub fn no_workspace(mut self) -> Self {
        self.flags.workspace = Some("none".into());
        self
    }

    pub fn mount(
        mut self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        mode: MountMode,
    ) -> Self {
        let (source, target) = (source.as_ref().as_os_str(), target.as_ref().as_os_str());
        let join = |parts: &[&[u8]]| OsStr::from_bytes(&parts.concat()).to_owned();
        let (from, to, mode) = (source.as_bytes(), target.as_bytes(), mode.name().as_bytes());
        if from.contains(&b':') || to.contains(&b':') {
            let spelled = join(&[b"type=bind,src=", from, b",dst=", to, b",mode=", mode]);
            self.flags.mounts.push(spelled);
        } else {
            self.flags.volumes.push(join(&[from, b":", to, b":", mode]));
        }
        self
    }

    /// Mounts a file system in memory.
    pub fn tmpfs(mut self, target: impl AsRef<Path>, bytes: u64) -> Self {
        let target = target.as_ref().as_os_str().as_bytes();
        let text = [target, b":size=", bytes.to_string().as_bytes()].concat();
        self.flags.tmpfs.push(OsStr::from_bytes(&text).to_owned());
        self
    }

    /// Mounts an install prefix read-only at the same path, and adds its `bin` to `PATH`.
    pub fn tool(mut self, prefix: impl AsRef<Path>) -> Self {
        self.flags.tools.push(prefix.as_ref().into());
        self
    }

    /// Allows a mount of this sensitive path.
    pub fn allow_source(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.allow_sources.push(path.as_ref().into());
        self
    }

    /// Lets the run write this control file of an `rw` workspace (`.git/config`).
    pub fn allow_control(mut self, name: impl Into<OsString>) -> Self {
        self.flags.allow_control.push(name.into());
        self
    }

    /// Hides this file of the workspace.
    pub fn hide(mut self, name: impl Into<OsString>) -> Self {
        self.flags.hide.push(name.into());
        self
    }

    /// The working directory of commands.
    pub fn workdir(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.workdir = Some(path.as_ref().into());
        self
    }

    /// The root file system: `host`, or a directory.
    pub fn rootfs(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.rootfs = Some(path.as_ref().into());
        self
    }

    /// The image for an engine.
    pub fn image(mut self, name: impl Into<String>) -> Self {
        self.flags.image = Some(name.into());
        self
    }

    /// When the engine pulls the image: `missing`, `always` or `never`.
    pub fn pull(mut self, when: impl Into<String>) -> Self {
        self.flags.pull = Some(when.into());
        self
    }

    /// The engine's runtime, such as `runsc`.
    pub fn oci_runtime(mut self, name: impl Into<String>) -> Self {
        self.flags.oci_runtime = Some(name.into());
        self
    }

    /// The ids inside; not 0.
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.flags.user = Some(format!("{uid}:{gid}"));
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let text = [name.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()].concat();
        self.flags.env.push(OsStr::from_bytes(&text).to_owned());
        self
    }

    /// Passes the host's value of this variable.
    pub fn pass_env(mut self, name: impl Into<OsString>) -> Self {
        self.flags.pass_env.push(name.into());
        self
    }

    /// Allows connections to `host[:port]`; no other host can be reached.
    pub fn allow_host(mut self, rule: impl Into<String>) -> Self {
        self.flags.allow_hosts.push(rule.into());
        self
    }

    /// Adds a secret to requests, which the run never sees: `env=NAME,host=HOST,header=NAME`, as `--secret`.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.flags.secrets.push(secret.into());
        self
    }

    /// Publishes a port of the run: `[[ADDRESS:]HOST_PORT:]PORT`.
    pub fn publish(mut self, port: impl Into<String>) -> Self {
        self.flags.publish.push(port.into());
        self
    }

    /// Memory limit of the whole run in bytes, swap included.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.flags.memory = Some(bytes.to_string());
        self
    }

    pub fn cpus(mut self, count: f64) -> Self {
        self.flags.cpus = Some(count.to_string());
        self
    }

    /// Limit of processes and threads.
    pub fn pids(mut self, count: u32) -> Self {
        self.flags.pids_limit = Some(count.to_string());
        self
    }

    /// Bytes that may be written to disk.
    pub fn disk(mut self, bytes: u64) -> Self {
        self.flags.disk = Some(bytes.to_string());
        self
    }

    /// How long the sandbox may live.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.flags.timeout = Some(format!("{}ms", time.as_millis()));
        self
    }

    /// Time between TERM and KILL when the run is stopped.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.flags.stop_timeout = Some(format!("{}ms", time.as_millis()));
        self
    }

    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.flags.name = Some(name.into());
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.flags.labels.push(format!("{key}={value}"));
        self
    }

    /// Refuses to start unless this clause is enforced.
    pub fn require(mut self, clause: Clause) -> Self {
        self.flags.require.push(clause.to_string());
        self
    }

    /// Starts even if this clause is not enforced; the reason is recorded.
    pub fn waive(mut self, clause: Clause, reason: &str) -> Self {
        self.flags.waive.push(format!("{clause}={reason}"));
        self
    }

    /// Sets any manifest key, as `-c` does: `limits.memory=2g`.
    pub fn setting(mut self, assignment: impl Into<String>) -> Self {
        self.flags.settings.push(assignment.into());
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
        self.resolve(Vec::new()).map(|resolved| resolved.spec)
    }

    /// Starts a sandbox that lives until it is stopped or dropped.
    pub async fn start(self) -> Result<Sandbox, Error> {
        let request = (Keep::UntilStopped, Bond::EndsWithConnection, Streams::Unwatched);
        let (client, launched, home) = self.launch(Vec::new(), request).await?;
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
        let argv: Vec<OsString> = argv.into_iter().map(Into::into).collect();
        if argv.is_empty() {
            return Err(config::ConfigError::from(belljar_spec::ResolveError::NoCommand).into());
        }
        let request = (Keep::WhileCommandRuns, Bond::EndsWithConnection, Streams::Output);
        let (client, launched, home) = self.launch(argv, request).await?;
        let command = launched.command.ok_or(Error::lost("the command is not followed"))?;
        let output = collect(command, limit).await?;
        let report = client.stopped().await?;
        Ok(RunOutput { run: launched.run, home, posture: launched.posture, output, report })
    }

    async fn launch(
        self,
        argv: Vec<OsString>,
        (keep, bond, streams): (Keep, Bond, Streams),
    ) -> Result<(Client, LaunchedRun, PathBuf), Error> {
        let connector = self.choose_connector();
        // In a blocking task: it reads files.
        let resolve = move || self.resolve(argv).and_then(Resolved::with_secrets);
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
            resumed_from: None,
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

    /// An empty command stands for a kept sandbox.
    fn resolve(&self, argv: Vec<OsString>) -> Result<Resolved, Error> {
        let env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let cwd = std::env::current_dir().map_err(Error::io("find the current directory"))?;
        let kept = argv.is_empty();
        let mut flags = self.flags.clone();
        flags.command = if kept { vec![NO_COMMAND.into()] } else { argv };
        let mut invocation = Invocation::new(cwd, env, flags);
        if self.no_config {
            invocation.source = ManifestSource::None;
            invocation.config_files = ConfigFiles::Ignore;
        } else if let Some(file) = &self.manifest {
            invocation.source = ManifestSource::File(file.clone());
        }
        config::check_flags(&invocation)?;
        let home = self.home.clone().or_else(|| self.choose_connector().home());
        let home = match home {
            Some(path) => Home::open_at(path)?,
            None => Home::open(&invocation.env)?,
        };
        let Loaded { mut spec, .. } = config::load(&invocation, &home)?;
        if kept {
            spec.command.clear();
        }
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
