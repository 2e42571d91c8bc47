//! The agent of `belljar-remote`: it starts a lab's sandboxes in a mount namespace where the lab's files are not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use belljar::spec::env;
use tempfile::TempDir;

/// Longer than a busy machine keeps a launcher from sending, shorter than tests wait for the end of what a killed
/// launcher left.
pub const REMOTE_LEASE_MS: &str = "8000";

#[derive(Debug)]
pub struct RemoteAgent {
    process: Child,
    /// The executable of its sandboxes' PID 1, and what it keeps for them.
    directory: TempDir,
}

impl RemoteAgent {
    /// As `BELLJAR_TEST_ON` has it.
    pub const NAME: &str = "remote";

    /// Whether the sandboxes of this test run are behind agents.
    pub fn is_of_this_test_run() -> bool {
        std::env::var(env::TEST_ON).is_ok_and(|name| name == Self::NAME)
    }

    /// The command with the remote backend in the jail's place. `cargo xtask test` builds it.
    pub fn launcher() -> PathBuf {
        std::env::var_os(env::TEST_REMOTE).map(PathBuf::from).unwrap()
    }

    /// For this launcher. `hidden` is empty where the agent is.
    pub fn start(launcher: &Path, hidden: &Path) -> Self {
        let directory = TempDir::with_prefix("belljar-agent-").unwrap();
        let exe = directory.path().join("belljar-agent");
        if fs::hard_link(Self::launcher(), &exe).is_err() {
            fs::copy(Self::launcher(), &exe).unwrap();
        }
        let script = "mount -t tmpfs none \"$1\" && exec \"$0\" __agent \"$2\"";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg(&exe)
            .arg(hidden)
            .arg(directory.path())
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let address = format!("127.0.0.1:{}", port.trim());
        fs::write(launcher.with_file_name("agent-address"), address).unwrap();
        Self { process, directory }
    }

    /// For the launcher.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![(env::TEST_LEASE_MS, REMOTE_LEASE_MS.to_owned())]
    }

    /// The executable of PID 1. The agent and its sessions have it too.
    pub fn exe(&self) -> PathBuf {
        self.directory.path().join("belljar-agent")
    }
}

impl Drop for RemoteAgent {
    fn drop(&mut self) {
        let _ = self.process.kill(); // sessions and their jails end with it
        let _ = self.process.wait();
    }
}
