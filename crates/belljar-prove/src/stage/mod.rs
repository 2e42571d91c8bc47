//! Where a case plays: directories of its own, runs of the real command, and the unprotected arm.
//!
//! Everything is under one temporary directory, which goes away with the stage.

mod group;
mod in_world;
mod process;
mod promise;
mod run;
mod scenery;
pub(crate) mod sweep;
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

pub(crate) use group::MemoryGroup;
pub(crate) use process::{Running, Seen};
pub(crate) use promise::Held;
use promise::Posture;
pub(crate) use run::Run;
use run::{Network, Settings};
pub(crate) use scenery::{Listener, Sleeper, wait_until_none};

use crate::probe::PROBE;
use crate::world::{World, WorldError};

/// No probe and no run takes longer; the machine may be busy.
const LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        error: std::io::Error,
    },
    #[error("{what} took too long")]
    TooLong { what: String },
    #[error("{what} told nothing (it ended with {end}): {said}")]
    Silent { what: String, end: String, said: String },
    #[error("no run can be planned there: {said}")]
    NoPlan { said: String },
    #[error("the host backend has no boundary, and the attacks would meet this machine")]
    NoBoundary,
    #[error("no network of its own")]
    World(#[from] WorldError),
    #[error("{0}")]
    Unexpected(String),
}

impl StageError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}

/// Who starts the runs.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Whoever runs this.
    Caller,
    /// Another user, in the cgroups behind these `cgroup.procs` files. Needs root.
    User { uid: u32, gid: u32, cgroups: Vec<PathBuf> },
}

/// What is attacked: an executable, a backend, and who starts it.
#[derive(Clone, Debug)]
pub struct Arm {
    pub belljar: PathBuf,
    pub backend: Option<BackendName>,
    pub identity: Identity,
    /// More flags of `belljar run`, such as an image.
    pub flags: Vec<OsString>,
    /// Variables by which the launcher finds its engine.
    pub env: Vec<(OsString, OsString)>,
}

impl Arm {
    pub fn new(belljar: PathBuf, backend: Option<BackendName>, identity: Identity) -> Self {
        Self { belljar, backend, identity, flags: Vec::new(), env: Vec::new() }
    }
}

#[derive(Debug)]
pub struct Stage {
    arm: Arm,
    /// Takes everything away when this process is gone, whatever ended it.
    sweeper: sweep::Sweeper,
    root: PathBuf,
    places: Cell<u32>,
    /// Of a run with a read-only tree and nothing else.
    posture: Posture,
    /// Made for the first case that needs it.
    world: OnceCell<World>,
}

/// Where a control runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unprotected {
    /// On the host, as whoever runs this.
    Directly,
    /// In namespaces of its own: what it does there is gone afterwards. Uid 0, of the host if that is
    /// who runs this.
    Scratch,
    /// The same, always with a user namespace.
    MappedScratch,
}

impl Stage {
    pub fn new(arm: Arm) -> Result<Self, StageError> {
        if arm.backend == Some(BackendName::Host) {
            return Err(StageError::NoBoundary);
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{count}", sweep::PREFIX, std::process::id());
        // Without links: it is compared with what the sandbox says.
        let base = fs::canonicalize(std::env::temp_dir())
            .map_err(StageError::io("find the temporary directory"))?;
        sweep::leftovers(&base);
        let root = base.join(name);
        // Its name can be guessed, so it must not have been there before.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&root)
            .map_err(StageError::io(format!("make {}", root.display())))?;
        let sweeper = sweep::Sweeper::start(&arm.belljar, &root)?;
        let mut stage = Self {
            arm,
            sweeper,
            root,
            places: Cell::new(0),
            posture: Posture::default(),
            world: OnceCell::new(),
        };
        fs::set_permissions(&stage.root, fs::Permissions::from_mode(0o755))
            .map_err(StageError::io("let others reach the stage"))?;
        stage.directory(&stage.belljar_home(), 0o700)?;
        stage.directory(&stage.user_home(), 0o700)?;
        stage.directory(&stage.engine_settings(), 0o700)?;
        stage.directory(&stage.kit(), 0o755)?;
        let probe = stage.probe();
        fs::copy(&stage.arm.belljar, &probe).map_err(StageError::io("copy the probe"))?;
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755))
            .map_err(StageError::io("copy the probe"))?;
        stage.give(&probe)?;
        stage.posture = stage.plan(&Run::mounted(&stage.kit()))?;
        Ok(stage)
    }

    pub(crate) fn belljar_home(&self) -> PathBuf {
        self.root.join("belljar-home")
    }

    /// What the launcher takes for the user's home.
    pub(crate) fn user_home(&self) -> PathBuf {
        self.root.join("user-home")
    }

    /// Where the launcher looks for settings of engines that the arm's variables do not name. Empty.
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

    /// A new empty directory that belongs to who starts the runs.
    pub(crate) fn place(&self) -> Result<PathBuf, StageError> {
        let number = self.places.get();
        self.places.set(number + 1);
        let path = self.root.join(format!("place-{number}"));
        self.directory(&path, 0o755)?;
        Ok(path)
    }

    /// A word that no other process has among its arguments.
    pub(crate) fn word(&self) -> Result<String, StageError> {
        let place = self.place()?;
        let name = place.strip_prefix(&self.root).unwrap_or(&place).display().to_string();
        let stage = self.root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(format!("{stage}-{name}"))
    }

    /// A place with the probe in it.
    pub(crate) fn workspace(&self) -> Result<PathBuf, StageError> {
        let path = self.place()?;
        let probe = path.join("probe");
        // The same file, where the file system can do that: it is large.
        fs::hard_link(self.probe(), &probe)
            .or_else(|_| fs::copy(self.probe(), &probe).map(drop))
            .map_err(StageError::io("put the probe into the workspace"))?;
        Ok(path)
    }

    pub(crate) fn directory(&self, path: &Path, mode: u32) -> Result<(), StageError> {
        let made = fs::DirBuilder::new().mode(mode).create(path);
        made.map_err(StageError::io(format!("make {}", path.display())))?;
        self.give(path)
    }

    pub(crate) fn file(&self, path: &Path, content: &str) -> Result<(), StageError> {
        fs::write(path, content).map_err(StageError::io(format!("write {}", path.display())))?;
        self.give(path)
    }

    fn give(&self, path: &Path) -> Result<(), StageError> {
        match &self.arm.identity {
            Identity::Caller => Ok(()),
            Identity::User { uid, gid, .. } => chown(path, Some(*uid), Some(*gid))
                .map_err(StageError::io(format!("give {} away", path.display()))),
        }
    }

    /// The command, as whoever is to start it. Its environment holds nothing that is not needed.
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
            // Not in the home, where the cases put what looks like settings of an engine.
            .env("DOCKER_CONFIG", self.engine_settings())
            .env("XDG_CONFIG_HOME", self.engine_settings())
            .envs(self.arm.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.root);
        command
    }

    pub(crate) fn command(&self, run: &Run) -> Result<Command, StageError> {
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
        command.args(&run.flags).arg("--").args(&run.words);
        command.envs(run.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// The run, from start to end.
    pub(crate) fn inside(&self, run: &Run) -> Result<Seen, StageError> {
        process::to_the_end(&mut self.command(run)?, "the run", LIMIT)
    }

    pub(crate) fn start_inside(&self, run: &Run) -> Result<Running, StageError> {
        Running::start(&mut self.command(run)?, "the run")
    }

    /// The same attempt where nothing forbids it.
    pub(crate) fn outside<W: AsRef<OsStr>>(
        &self,
        where_to: Unprotected,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Seen, StageError> {
        process::to_the_end(&mut self.control(where_to, words), "the control", LIMIT)
    }

    /// A process of the user who starts the runs, on the host.
    pub(crate) fn neighbour<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Seen, StageError> {
        match &self.arm.identity {
            Identity::Caller => self.outside(Unprotected::Directly, words),
            Identity::User { uid, .. } => self.as_user(&uid.to_string(), words),
        }
    }

    /// A process of some user, with the group of the same number, on the host. Needs root.
    pub(crate) fn as_user<'a>(
        &self,
        uid: &str,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Seen, StageError> {
        let mut command = self.control(Unprotected::Directly, ["as", uid, uid, ""]);
        command.arg(self.probe()).arg(PROBE).args(words);
        process::to_the_end(&mut command, "the control", LIMIT)
    }

    pub(crate) fn control<W: AsRef<OsStr>>(
        &self,
        where_to: Unprotected,
        words: impl IntoIterator<Item = W>,
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
        command.args(words).current_dir(&self.root);
        command
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.world.take()); // its processes work in the directory
        self.sweeper.finish();
    }
}
