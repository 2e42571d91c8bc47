//! Starts a Docker engine whose files, sockets and processes all belong to one directory.
//!
//! `xtask` uses this file too, so that the shared engine and an engine that a test breaks are started alike.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name that the Docker engine knows gVisor by.
pub const RUNSC: &str = "runsc";
/// What the images are called on Docker: one with the directories of the usual busybox image, one that
/// has a distribution's as well, and one without anything to run.
pub const BUSYBOX_IMAGE: &str = "belljar-test/busybox:1";
pub const DEBIAN_IMAGE: &str = "belljar-test/like-debian:1";
pub const EMPTY_IMAGE: &str = "belljar-test/empty:1";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// For a machine on which gVisor may neither use KVM nor control groups.
const RUNSC_ARGUMENTS: [&str; 3] = ["--network=none", "--platform=ptrace", "--ignore-cgroups"];

#[derive(Clone, Debug)]
pub struct DockerFiles {
    directory: PathBuf,
}

impl DockerFiles {
    /// The directory has to be there, and its path short: sockets lie in it.
    pub fn write(directory: &Path, runsc: Option<&Path>) -> io::Result<Self> {
        let files = Self { directory: directory.to_owned() };
        let mut settings = serde_json::json!({ "runtimes": {} });
        if let Some(path) = runsc {
            settings["runtimes"][RUNSC] =
                serde_json::json!({ "path": path, "runtimeArgs": RUNSC_ARGUMENTS });
        }
        fs::write(files.path("daemon.json"), settings.to_string())?;
        let [root, state, opt, socket] =
            ["c/root", "c/state", "c/opt", "c/c.sock"].map(|name| files.path(name));
        // Without a file it would use the machine's own directories.
        let settings = format!(
            "version = 2\nroot = {root:?}\nstate = {state:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {socket:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt:?}\n"
        );
        fs::write(files.path("containerd.toml"), settings)?;
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("docker.sock")
    }

    pub fn containerd_socket(&self) -> PathBuf {
        self.path("c/c.sock")
    }

    /// To be started first: dockerd without one uses the machine's, if it runs.
    pub fn containerd(&self) -> Command {
        let mut containerd = with_a_clean_environment("containerd");
        containerd.arg("--config").arg(self.path("containerd.toml"));
        containerd
    }

    /// Without networks: belljar's containers have none, and a bridge would be the whole machine's.
    pub fn dockerd(&self) -> Command {
        let mut dockerd = with_a_clean_environment("dockerd");
        let with = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        dockerd.args([
            with("config-file", self.path("daemon.json")),
            with("containerd", self.containerd_socket()),
            with("data-root", self.path("data")),
            with("exec-root", self.path("exec")),
            with("pidfile", self.path("pid")),
            format!("--host=unix://{}", self.socket().display()),
            "--bridge=none".to_owned(),
            "--iptables=false".to_owned(),
        ]);
        dockerd
    }
}

/// Ends with its parent, whatever ended that. An engine takes its own containers down first.
fn with_a_clean_environment(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", program]).env_clear().env("PATH", PATH).env("HOME", "/");
    command
}
