//! A sandbox to be, from code, from a manifest, or both: the same layers, ceiling and trust as the
//! command's.

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
use super::{Bonded, Sandbox};

/// What a kept sandbox is decided with: the rules want a command, and it has none of its own.
const NO_COMMAND: &str = "true";

/// Made by [`Sandbox::builder`]. Relative paths start in the current directory.
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

/// A run of one command, from its start to its record.
#[derive(Clone, Debug)]
pub struct RunOutput {
    pub run: RunId,
    pub posture: Posture,
    pub output: Output,
    pub report: StopReport,
}

impl SandboxBuilder {
    /// `Auto` unless it is said: on Linux the jail, else docker, podman; see [`Sandbox::not_taken`].
    pub fn backend(mut self, backend: BackendChoice) -> Self {
        self.flags.backend = Some(backend.name().to_owned());
        self
    }

    /// What is tried, in this order, where the backend cannot be used or does not hold what is required.
    pub fn fallback(mut self, backends: impl IntoIterator<Item = BackendName>) -> Self {
        let names: Vec<String> = backends.into_iter().map(|name| format!("\"{name}\"")).collect();
        self.flags.settings.push(format!("sandbox.fallback=[{}]", names.join(",")));
        self
    }

    /// The tree to work on; the current directory, `rw`, unless this or a manifest says otherwise.
    pub fn workspace(mut self, path: impl AsRef<Path>, mode: MountMode) -> Self {
        // A mode at the end keeps a colon in the path out of it, and the word "none" too.
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

    /// A file system in memory, of so many bytes.
    pub fn tmpfs(mut self, target: impl AsRef<Path>, bytes: u64) -> Self {
        let target = target.as_ref().as_os_str().as_bytes();
        let text = [target, b":size=", bytes.to_string().as_bytes()].concat();
        self.flags.tmpfs.push(OsStr::from_bytes(&text).to_owned());
        self
    }

    /// An install prefix: read-only at its own path, its `bin` on `PATH`.
    pub fn tool(mut self, prefix: impl AsRef<Path>) -> Self {
        self.flags.tools.push(prefix.as_ref().into());
        self
    }

    /// Allows this sensitive path as a source.
    pub fn allow_source(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.allow_sources.push(path.as_ref().into());
        self
    }

    /// A control file of an `rw` workspace (`.git/config`) that the run may write to.
    pub fn allow_control(mut self, name: impl Into<OsString>) -> Self {
        self.flags.allow_control.push(name.into());
        self
    }

    /// A name in the workspace that is not there inside.
    pub fn hide(mut self, name: impl Into<OsString>) -> Self {
        self.flags.hide.push(name.into());
        self
    }

    /// Where commands start.
    pub fn workdir(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.workdir = Some(path.as_ref().into());
        self
    }

    /// `host`, or a directory that holds a root file system.
    pub fn rootfs(mut self, path: impl AsRef<Path>) -> Self {
        self.flags.rootfs = Some(path.as_ref().into());
        self
    }

    /// The image that engines start from.
    pub fn image(mut self, name: impl Into<String>) -> Self {
        self.flags.image = Some(name.into());
        self
    }

    /// When an engine fetches the image: `missing`, `always` or `never`.
    pub fn pull(mut self, when: impl Into<String>) -> Self {
        self.flags.pull = Some(when.into());
        self
    }

    /// The engine's runtime, such as `runsc`.
    pub fn oci_runtime(mut self, name: impl Into<String>) -> Self {
        self.flags.oci_runtime = Some(name.into());
        self
    }

    /// Never 0.
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.flags.user = Some(format!("{uid}:{gid}"));
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let text = [name.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()].concat();
        self.flags.env.push(OsStr::from_bytes(&text).to_owned());
        self
    }

    /// The host's value of this variable.
    pub fn pass_env(mut self, name: impl Into<OsString>) -> Self {
        self.flags.pass_env.push(name.into());
        self
    }

    /// `host[:port]`; nothing is reachable unless it is named.
    pub fn allow_host(mut self, rule: impl Into<String>) -> Self {
        self.flags.allow_hosts.push(rule.into());
        self
    }

    /// A credential that stays outside: `env=NAME,host=HOST,header=NAME`, as `--secret` has it.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.flags.secrets.push(secret.into());
        self
    }

    /// `[[ADDRESS:]HOST_PORT:]PORT`: lets the host reach a port inside.
    pub fn publish(mut self, port: impl Into<String>) -> Self {
        self.flags.publish.push(port.into());
        self
    }

    /// Bytes of the whole tree, swap included.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.flags.memory = Some(bytes.to_string());
        self
    }

    pub fn cpus(mut self, count: f64) -> Self {
        self.flags.cpus = Some(count.to_string());
        self
    }

    /// Processes and threads.
    pub fn pids(mut self, count: u32) -> Self {
        self.flags.pids_limit = Some(count.to_string());
        self
    }

    /// Bytes that may be written to disk.
    pub fn disk(mut self, bytes: u64) -> Self {
        self.flags.disk = Some(bytes.to_string());
        self
    }

    /// How long the sandbox may live, by the wall clock.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.flags.timeout = Some(format!("{}ms", time.as_millis()));
        self
    }

    /// Between the request to stop and the end of everything.
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

    /// Demands that a clause holds, or nothing is started.
    pub fn require(mut self, clause: Clause) -> Self {
        self.flags.require.push(clause.to_string());
        self
    }

    /// Starts although a clause does not hold, for a reason that the record keeps.
    pub fn waive(mut self, clause: Clause, reason: &str) -> Self {
        self.flags.waive.push(format!("{clause}={reason}"));
        self
    }

    /// Any manifest key, as `-c` has it: `limits.memory=2g`.
    pub fn setting(mut self, assignment: impl Into<String>) -> Self {
        self.flags.settings.push(assignment.into());
        self
    }

    /// This manifest, which is trusted because it is named. Without it the nearest one counts.
    pub fn manifest(mut self, path: impl Into<PathBuf>) -> Self {
        self.manifest = Some(path.into());
        self
    }

    /// No manifest and no configuration file; the administrator's ceiling still holds.
    pub fn no_config(mut self) -> Self {
        self.no_config = true;
        self
    }

    /// Belljar's home; `BELLJAR_HOME` or the user's own where none is named.
    pub fn home(mut self, path: impl Into<PathBuf>) -> Self {
        self.home = Some(path.into());
        self
    }

    /// The belljar executable; see [`super::find_executable`] for what is used otherwise.
    pub fn belljar(mut self, path: impl Into<PathBuf>) -> Self {
        self.executable = Some(path.into());
        self
    }

    /// How the supervisor is reached: for tests, a [`crate::testing::FakeBackend`].
    pub fn connector(mut self, connector: impl Connector + 'static) -> Self {
        self.connector = Some(Arc::new(connector));
        self
    }

    /// How much of each stream [`SandboxBuilder::run`] keeps.
    pub fn limit_output(mut self, bytes: usize) -> Self {
        self.output_limit = Some(bytes);
        self
    }

    /// What it comes to, without starting anything.
    pub fn build_spec(&self) -> Result<RunSpec, Error> {
        self.decide(Vec::new()).map(|decided| decided.spec)
    }

    /// Starts a sandbox that stays until it is stopped or dropped.
    pub async fn start(self) -> Result<Sandbox, Error> {
        let request = (Keep::UntilStopped, Bond::EndsWithConnection, Streams::Unwatched);
        let (client, launched, home) = self.launch(Vec::new(), request).await?;
        let LaunchedRun { backend, posture, not_taken, .. } = launched;
        let bonded = Bonded::Owner { backend, posture, not_taken };
        Ok(Sandbox::new(client, launched.run, home, bonded))
    }

    /// A fresh sandbox for one command, which goes with it.
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
        let (client, launched, _) = self.launch(argv, request).await?;
        let command = launched.command.ok_or(Error::lost("the command is not followed"))?;
        let output = collect(command, limit).await?;
        let report = client.stopped().await?;
        Ok(RunOutput { run: launched.run, posture: launched.posture, output, report })
    }

    async fn launch(
        self,
        argv: Vec<OsString>,
        (keep, bond, streams): (Keep, Bond, Streams),
    ) -> Result<(Client, LaunchedRun, PathBuf), Error> {
        let connector = self.reached_by();
        // Reads files, which may be slow.
        let decide = move || self.decide(argv).and_then(Decided::with_secrets);
        let decided = tokio::task::spawn_blocking(decide).await;
        let (home, spec, secrets) = decided
            .map_err(|error| Error::io("read the settings")(std::io::Error::other(error)))??;
        let mut client = Client::over(&*connector, &Destination::New).await?;
        let home_text = home.as_path().into();
        let request =
            LaunchRequest { home: home_text, spec, keep, bond, streams, secrets, birth: None };
        let launched = client.launch(request, None).await?;
        Ok((client, launched, home))
    }

    fn reached_by(&self) -> Arc<dyn Connector> {
        match (&self.connector, &self.executable) {
            (Some(connector), _) => Arc::clone(connector),
            (None, Some(path)) => Arc::new(Supervisors::with_executable(path)),
            (None, None) => Arc::new(Supervisors::new()),
        }
    }

    /// An empty command is that of a kept sandbox.
    fn decide(&self, argv: Vec<OsString>) -> Result<Decided, Error> {
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
        let home = self.home.clone().or_else(|| self.reached_by().home());
        let home = match home {
            Some(path) => Home::open_at(path)?,
            None => Home::open(&invocation.env)?,
        };
        let Loaded { mut spec, .. } = config::load(&invocation, &home)?;
        if kept {
            spec.command.clear();
        }
        Ok(Decided { home: home.path().to_owned(), spec, invocation })
    }
}

/// What the layers came to.
struct Decided {
    home: PathBuf,
    spec: RunSpec,
    invocation: Invocation,
}

impl Decided {
    /// Asks for the values of secrets, which may take a while.
    fn with_secrets(self) -> Result<(PathBuf, RunSpec, Vec<SecretValue>), Error> {
        let Self { home, spec, invocation } = self;
        let secrets = config::secret_values(&spec, &invocation.env, &invocation.cwd)
            .map_err(config::ConfigError::from)?;
        Ok((home, spec, secrets))
    }
}
