//! The environment of a case: directories, runs of the real command, and the unprotected arm.
//!
//! Everything is below one temporary directory, which is removed with the test bed.

pub(crate) mod cleanup;
mod fixtures;
mod group;
mod posture;
mod process;
mod run;
mod test_network;
mod tool;

use std::cell::{Cell, OnceCell};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belljar_spec::{BackendName, env};

pub(crate) use fixtures::{Listener, Sleeper, wait_until_none};
pub(crate) use group::MemoryGroup;
pub(crate) use posture::Held;
use posture::Posture;
pub(crate) use process::{ProcessOutput, Running};
pub(crate) use run::Run;
use run::{Network, Settings};

use crate::probe::PROBE;
use crate::world::{World, WorldError};

/// Timeout of a probe or a run, on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, thiserror::Error)]
pub enum TestBedError {
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        error: std::io::Error,
    },
    #[error("{what} took too long")]
    TooLong { what: String },
    #[error("{what} printed no report (it ended with {end}): {error_text}")]
    Silent { what: String, end: String, error_text: String },
    #[error("no run can be planned: {error_text}")]
    NoPlan { error_text: String },
    #[error("the host backend has no boundary, and the attacks would hit this machine")]
    NoBoundary,
    #[error("cannot start the test network")]
    World(#[from] WorldError),
    #[error("{0}")]
    Unexpected(String),
}

impl TestBedError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}

/// The user that starts the runs.
#[derive(Clone, Debug)]
pub enum Identity {
    /// The user of this process.
    Caller,
    /// Another user, in the cgroups behind these `cgroup.procs` files. Needs root.
    User { uid: u32, gid: u32, cgroups: Vec<PathBuf> },
}

/// The target of the attacks: an executable, a backend and a user.
#[derive(Clone, Debug)]
pub struct Arm {
    pub belljar: PathBuf,
    pub backend: Option<BackendName>,
    pub identity: Identity,
    /// Additional flags of `belljar run`, such as an image.
    pub flags: Vec<OsString>,
    /// Variables that the launcher needs to find its engine.
    pub env: Vec<(OsString, OsString)>,
}

impl Arm {
    pub fn new(belljar: PathBuf, backend: Option<BackendName>, identity: Identity) -> Self {
        Self { belljar, backend, identity, flags: Vec::new(), env: Vec::new() }
    }
}

#[derive(Debug)]
pub struct TestBed {
    arm: Arm,
    /// Removes everything when this process has ended, however it ended.
    cleanup_process: cleanup::CleanupProcess,
    root: PathBuf,
    places: Cell<u32>,
    /// The posture of a run with only a read-only tree.
    posture: Posture,
    /// Started for the first case that needs it.
    world: OnceCell<World>,
}

/// Where a control runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unprotected {
    /// On the host, as the user of this process.
    Directly,
    /// In new namespaces, so that its changes are undone. As uid 0, of the host if this
    /// process is root.
    Scratch,
    /// The same, always with a user namespace.
    MappedScratch,
}

impl TestBed {
    pub fn new(arm: Arm) -> Result<Self, TestBedError> {
        if arm.backend == Some(BackendName::Host) {
            return Err(TestBedError::NoBoundary);
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{count}", cleanup::PREFIX, std::process::id());
        // Canonical: it is compared with paths that the sandbox reports.
        let base = fs::canonicalize(std::env::temp_dir())
            .map_err(TestBedError::io("find the temporary directory"))?;
        cleanup::leftovers(&base);
        let root = base.join(name);
        // The name can be guessed, so the directory must not exist already.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&root)
            .map_err(TestBedError::io(format!("make {}", root.display())))?;
        let cleanup_process = cleanup::CleanupProcess::start(&arm.belljar, &root)?;
        let mut testbed = Self {
            arm,
            cleanup_process,
            root,
            places: Cell::new(0),
            posture: Posture::default(),
            world: OnceCell::new(),
        };
        fs::set_permissions(&testbed.root, fs::Permissions::from_mode(0o755))
            .map_err(TestBedError::io("let others reach the stage"))?;
        testbed.directory(&testbed.belljar_home(), 0o700)?;
        testbed.directory(&testbed.user_home(), 0o700)?;
        testbed.directory(&testbed.engine_settings(), 0o700)?;
        testbed.directory(&testbed.kit(), 0o755)?;
        let probe = testbed.probe();
        fs::copy(&testbed.arm.belljar, &probe).map_err(TestBedError::io("copy the probe"))?;
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755))
            .map_err(TestBedError::io("copy the probe"))?;
        testbed.give(&probe)?;
        testbed.posture = testbed.plan(&Run::mounted(&testbed.kit()))?;
        Ok(testbed)
    }

    pub(crate) fn belljar_home(&self) -> PathBuf {
        self.root.join("belljar-home")
    }

    /// The user's home, for the launcher.
    pub(crate) fn user_home(&self) -> PathBuf {
        self.root.join("user-home")
    }

    /// An empty directory for engine settings that the arm's variables do not name.
    fn engine_settings(&self) -> PathBuf {
        self.root.join("engine-settings")
    }

    pub(crate) fn kit(&self) -> PathBuf {
        self.root.join("kit")
    }

    pub(crate) fn probe(&self) -> PathBuf {
        self.kit().join("probe")
    }

    pub(crate) fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    /// A new empty directory of the user that starts the runs.
    pub(crate) fn place(&self) -> Result<PathBuf, TestBedError> {
        let number = self.places.get();
        self.places.set(number + 1);
        let path = self.root.join(format!("place-{number}"));
        self.directory(&path, 0o755)?;
        Ok(path)
    }

    /// A unique argument, to find processes by.
    pub(crate) fn unique_name(&self) -> Result<String, TestBedError> {
        let place = self.place()?;
        let name = place.strip_prefix(&self.root).unwrap_or(&place).display().to_string();
        let testbed = self.root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(format!("{testbed}-{name}"))
    }

    /// A directory with the probe in it.
    pub(crate) fn workspace(&self) -> Result<PathBuf, TestBedError> {
        let path = self.place()?;
        let probe = path.join("probe");
        // A hard link if possible: the file is large.
        fs::hard_link(self.probe(), &probe)
            .or_else(|_| fs::copy(self.probe(), &probe).map(drop))
            .map_err(TestBedError::io("put the probe into the workspace"))?;
        Ok(path)
    }

    pub(crate) fn directory(&self, path: &Path, mode: u32) -> Result<(), TestBedError> {
        let made = fs::DirBuilder::new().mode(mode).create(path);
        made.map_err(TestBedError::io(format!("make {}", path.display())))?;
        self.give(path)
    }

    pub(crate) fn file(&self, path: &Path, content: &str) -> Result<(), TestBedError> {
        fs::write(path, content).map_err(TestBedError::io(format!("write {}", path.display())))?;
        self.give(path)
    }

    fn give(&self, path: &Path) -> Result<(), TestBedError> {
        match &self.arm.identity {
            Identity::Caller => Ok(()),
            Identity::User { uid, gid, .. } => chown(path, Some(*uid), Some(*gid))
                .map_err(TestBedError::io(format!("give {} away", path.display()))),
        }
    }

    /// The command, as the user that starts the runs, with a minimal environment.
    fn launcher(&self, mut line: Vec<OsString>) -> Command {
        if let Identity::User { uid, gid, cgroups } = &self.arm.identity {
            let cgroups: Vec<OsString> = cgroups.iter().map(|path| path.clone().into()).collect();
            line.push(self.probe().into());
            line.extend([PROBE, "as", &uid.to_string(), &gid.to_string()].map(OsString::from));
            line.push(cgroups.join(OsStr::new(",")));
        }
        line.push(self.arm.belljar.clone().into());
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()))
            .env("HOME", self.user_home())
            .env(env::HOME, self.belljar_home())
            // Not in the home, where the cases put fake engine settings.
            .env("DOCKER_CONFIG", self.engine_settings())
            .env("XDG_CONFIG_HOME", self.engine_settings())
            .envs(self.arm.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.root);
        command
    }

    pub(crate) fn command(&self, run: &Run) -> Result<Command, TestBedError> {
        let front = match run.network {
            Network::Hosts => Vec::new(),
            Network::World => self.world()?.wrapper(),
        };
        let mut command = self.launcher(front);
        command.args(["run", "-q"]);
        match &run.settings {
            Settings::None => command.arg("--no-config"),
            Settings::Manifest(path) => command.arg("--manifest").arg(path),
            Settings::Found(tree) => command.current_dir(tree),
        };
        if let Some(backend) = self.arm.backend {
            command.args(["--backend", backend.name()]);
        }
        command.args(&self.arm.flags).args(self.posture.waivers());
        command.args(&run.flags).arg("--").args(&run.argv);
        command.envs(run.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs it to its end.
    pub(crate) fn inside(&self, run: &Run) -> Result<ProcessOutput, TestBedError> {
        process::to_the_end(&mut self.command(run)?, "the run", LIMIT)
    }

    pub(crate) fn start_inside(&self, run: &Run) -> Result<Running, TestBedError> {
        Running::start(&mut self.command(run)?, "the run")
    }

    /// Makes the same attempt without a sandbox.
    pub(crate) fn outside<W: AsRef<OsStr>>(
        &self,
        where_to: Unprotected,
        argv: impl IntoIterator<Item = W>,
    ) -> Result<ProcessOutput, TestBedError> {
        process::to_the_end(&mut self.control(where_to, argv), "the control", LIMIT)
    }

    /// Runs a process on the host as the user that starts the runs.
    pub(crate) fn neighbour<'a>(
        &self,
        argv: impl IntoIterator<Item = &'a str>,
    ) -> Result<ProcessOutput, TestBedError> {
        match &self.arm.identity {
            Identity::Caller => self.outside(Unprotected::Directly, argv),
            Identity::User { uid, .. } => self.as_user(&uid.to_string(), argv),
        }
    }

    /// Runs a process on the host as this uid and gid. Needs root.
    pub(crate) fn as_user<'a>(
        &self,
        uid: &str,
        argv: impl IntoIterator<Item = &'a str>,
    ) -> Result<ProcessOutput, TestBedError> {
        let mut command = self.control(Unprotected::Directly, ["as", uid, uid, ""]);
        command.arg(self.probe()).arg(PROBE).args(argv);
        process::to_the_end(&mut command, "the control", LIMIT)
    }

    pub(crate) fn control<W: AsRef<OsStr>>(
        &self,
        where_to: Unprotected,
        argv: impl IntoIterator<Item = W>,
    ) -> Command {
        let mut command = Command::new(self.probe());
        command.arg(PROBE);
        match where_to {
            Unprotected::Directly => {}
            Unprotected::Scratch if self.is_root() => drop(command.args(["scratch", "root"])),
            Unprotected::Scratch | Unprotected::MappedScratch => {
                command.args(["scratch", "mapped"]);
            }
        }
        command.args(argv).current_dir(&self.root);
        command
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        drop(self.world.take()); // its processes use the directory
        self.cleanup_process.finish();
    }
}
