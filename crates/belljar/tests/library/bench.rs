//! What the tests with a real sandbox share.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar::spec::MountMode;
use belljar::{ForkOptions, RecordedRun, Sandbox, SandboxBuilder};
use belljar_testkit::built;

/// A home and a workspace of the test's own.
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    pub(crate) fn builder(&self) -> SandboxBuilder {
        self.with_workspace(MountMode::Rw)
    }

    pub(crate) fn with_workspace(&self, mode: MountMode) -> SandboxBuilder {
        Sandbox::builder()
            .no_config()
            .home(self.home())
            .belljar(executable())
            .workspace(self.work(), mode)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap()
    }
}

/// What xtask built, or cargo.
pub(crate) fn executable() -> PathBuf {
    std::env::var_os("BELLJAR_EXE").map_or_else(|| built("belljar"), Into::into)
}

pub(crate) async fn fork(run: &RecordedRun, from: u32) -> Result<Sandbox, belljar::Error> {
    run.fork(ForkOptions::default().from(from).belljar(executable())).await
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub(crate) async fn until(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + within;
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}
