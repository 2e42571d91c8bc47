//! A fake supervisor for the tests of programs that embed belljar: the real protocol with scripted
//! commands. Nothing is started and nothing is isolated.

mod files;
mod reply;
mod serve;
mod task;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_spec::wire::control::{LaunchRefusal, WindowSize};
use belljar_spec::{OsText, Posture, RunSpec};

use super::connector::{BoxFuture, Connection, Connector, Destination};
use super::error::Error;
pub use reply::FakeReply;

type Script = dyn Fn(&FakeCall) -> FakeReply + Send + Sync;

/// A command that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeCall {
    pub argv: Vec<OsText>,
    /// The request's changes to the sandbox's variables.
    pub env: Vec<(String, Option<OsText>)>,
    pub workdir: Option<OsText>,
    /// The complete input.
    pub stdin: Vec<u8>,
    pub terminal: Option<WindowSize>,
    pub timeout: Option<Duration>,
}

/// Replaces real sandboxes in the tests of a program. Clones share everything.
///
/// Without a script, `true`, `false`, `echo`, `cat` and `sleep` work as usual; other programs are not
/// found.
#[derive(Clone)]
pub struct FakeBackend {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    scripts: Mutex<BTreeMap<OsText, Arc<Script>>>,
    log: Mutex<Log>,
    settings: Mutex<Settings>,
    home: PathBuf,
}

/// What happened so far.
#[derive(Debug, Default)]
struct Log {
    calls: Vec<FakeCall>,
    specs: Vec<RunSpec>,
    kills: usize,
    signals: Vec<i32>,
    sizes: Vec<WindowSize>,
    live: usize,
    sent: u64,
}

#[derive(Default)]
struct Settings {
    refusal: Option<LaunchRefusal>,
    build: Option<String>,
    posture: Option<Posture>,
    files: Option<PathBuf>,
    packed: Option<Vec<u8>>,
    attached: Option<FakeReply>,
}

impl FakeBackend {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let home = std::env::temp_dir().join(format!("belljar-fake.{process}.{number}"));
        let inner = Inner {
            scripts: Mutex::default(),
            log: Mutex::default(),
            settings: Mutex::default(),
            home,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Scripts `program`. The script is called when the complete input has arrived.
    pub fn on(
        self,
        program: &str,
        script: impl Fn(&FakeCall) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        lock(&self.inner.scripts).insert(program.into(), Arc::new(script));
        self
    }

    /// Refuses every launch, for this reason.
    pub fn refuse(self, refusal: LaunchRefusal) -> Self {
        lock(&self.inner.settings).refusal = Some(refusal);
        self
    }

    /// The supervisor reports this build.
    pub fn build(self, build: &str) -> Self {
        lock(&self.inner.settings).build = Some(build.to_owned());
        self
    }

    /// The posture of sandboxes. By default, no clause is enforced.
    pub fn posture(self, posture: Posture) -> Self {
        lock(&self.inner.settings).posture = Some(posture);
        self
    }

    /// The directory that is `/` for copies.
    pub fn files(self, directory: impl Into<PathBuf>) -> Self {
        lock(&self.inner.settings).files = Some(directory.into());
        self
    }

    /// Every copy out of a sandbox is these bytes.
    pub fn packed(self, bytes: impl Into<Vec<u8>>) -> Self {
        lock(&self.inner.settings).packed = Some(bytes.into());
        self
    }

    /// The main command of a run, for `attach`. By default there is none.
    pub fn attached(self, reply: FakeReply) -> Self {
        lock(&self.inner.settings).attached = Some(reply);
        self
    }

    /// Commands that ran, in order.
    pub fn calls(&self) -> Vec<FakeCall> {
        lock(&self.inner.log).calls.clone()
    }

    /// The specs that sandboxes were started with.
    pub fn specs(&self) -> Vec<RunSpec> {
        lock(&self.inner.log).specs.clone()
    }

    /// Commands that were killed.
    pub fn kills(&self) -> usize {
        lock(&self.inner.log).kills
    }

    pub fn signals(&self) -> Vec<i32> {
        lock(&self.inner.log).signals.clone()
    }

    /// Terminal sizes that were set after the start.
    pub fn sizes(&self) -> Vec<WindowSize> {
        lock(&self.inner.log).sizes.clone()
    }

    /// Sandboxes that are alive.
    pub fn live(&self) -> usize {
        lock(&self.inner.log).live
    }

    /// Bytes of output that were sent so far.
    pub fn sent(&self) -> u64 {
        lock(&self.inner.log).sent
    }
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeBackend").field(&*lock(&self.inner.log)).finish()
    }
}

impl Connector for FakeBackend {
    fn connect<'a>(&'a self, to: &'a Destination) -> BoxFuture<'a, Result<Connection, Error>> {
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(serve::serve(Arc::clone(&self.inner), to.clone(), theirs));
            Ok(Connection::new(ours))
        })
    }

    fn home(&self) -> Option<PathBuf> {
        Some(self.inner.home.clone())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home); // does not exist if nothing was started
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A script that panicked has failed its test; the others continue.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
