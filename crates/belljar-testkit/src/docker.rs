//! A Docker engine for one test, which may kill, freeze and restart it.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar::spec::env;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use super::engines::{EngineAccess, TestEngine};
use super::private_docker::{BUSYBOX_IMAGE, DockerFiles};
use super::processes::{alive, children_of, processes_with, send, until};
use super::{Actor, Lab, http};

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Prefixes of an engine's process names. No other process is killed, whatever its arguments are.
const PARTS: [&str; 3] = ["containerd", "dockerd", "runc"];

#[derive(Debug)]
pub struct PrivateDocker {
    directory: TempDir,
    files: DockerFiles,
    containerd: Child,
    /// Not there between a kill and the next start.
    dockerd: Option<Child>,
    /// Of the loopback interface, where it answers anybody in plain.
    port: Option<u16>,
}

impl PrivateDocker {
    /// Starts it with the image of the tests. `None` without Docker, which is reported.
    pub fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// One that is reached over the network as well.
    pub fn start_on_a_port() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self::start_with(Some(free.port()))
    }

    fn start_with(port: Option<u16>) -> Option<Self> {
        TestEngine::Docker.access()?;
        let archive = fs::read(std::env::var(env::TEST_IMAGE_ARCHIVE).unwrap()).unwrap();
        let directory = TempDir::with_prefix("belljar-docker-").unwrap();
        let files = DockerFiles::write(directory.path(), None).unwrap();
        let containerd = spawn(&mut files.containerd(), &directory.path().join("containerd.log"));
        let socket = files.containerd_socket();
        let mut docker = Self { directory, files, containerd, dockerd: None, port };
        assert!(until(RESPONSE_TIMEOUT, || socket.exists()), "containerd: {}", docker.log());
        docker.start_again();
        let (repository, tag) = BUSYBOX_IMAGE.rsplit_once(':').unwrap();
        let target = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        let imported =
            http::post(&docker.files.socket(), &target, "application/x-tar", &archive).unwrap();
        assert!(imported.is_good(), "{imported:?}");
        Some(docker)
    }

    /// Its data is as it was.
    pub fn start_again(&mut self) {
        assert!(self.dockerd.is_none(), "it runs already");
        let mut dockerd = self.files.dockerd();
        if self.port.is_some() {
            dockerd.arg(format!("--host={}", self.tcp())).arg("--tls=false");
        }
        self.dockerd = Some(spawn(&mut dockerd, &self.directory.path().join("dockerd.log")));
        assert!(until(RESPONSE_TIMEOUT, || self.answers()), "dockerd: {}", self.log());
    }

    pub fn answers(&self) -> bool {
        let ping = http::get_within(&self.files.socket(), "/_ping", Duration::from_secs(2));
        ping.is_ok_and(|answer| answer.is_good())
    }

    pub fn tcp(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port.unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.dockerd.as_ref().unwrap().id()
    }

    /// `kill -9` of the daemon alone: its containers, and what watches them, live on.
    pub fn kill(&mut self) {
        let mut dockerd = self.dockerd.take().unwrap();
        dockerd.kill().unwrap();
        dockerd.wait().unwrap();
        let _ = fs::remove_file(self.directory.path().join("pid")); // as a restarted machine has none
    }

    /// Ends as `systemctl stop` would have it.
    pub fn stop(&mut self) {
        end(self.dockerd.take().as_mut().unwrap());
    }

    /// Freezes it: connections stay open, and nothing responds.
    pub fn freeze(&self) {
        send(self.pid(), Signal::STOP);
        // Its threads stop one after the other, and the last could still answer.
        let threads = format!("/proc/{}/task", self.pid());
        let is_stopped = |entry: fs::DirEntry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        let all_stopped = || fs::read_dir(&threads).unwrap().flatten().all(is_stopped);
        assert!(until(Duration::from_secs(10), all_stopped), "it does not stop");
    }

    pub fn thaw(&self) {
        send(self.pid(), Signal::CONT);
    }

    pub fn access(&self) -> EngineAccess {
        EngineAccess {
            backend: "docker",
            runtime: None,
            image: BUSYBOX_IMAGE.to_owned(),
            socket: self.files.socket(),
            launcher: None,
        }
    }

    /// A lab that runs containers on this engine.
    pub fn lab(&self) -> Lab {
        Lab::on(self.access(), Actor::Me)
    }

    fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        format!("{}\n{}", read("containerd.log"), read("dockerd.log"))
    }

    /// Processes and containers that a killed engine left, found by its directory.
    fn end_the_rest(&self) {
        let directory = self.directory.path().to_str().unwrap();
        let is_part = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            PARTS.iter().any(|part| name.starts_with(part))
        };
        for watcher in processes_with(directory).into_iter().filter(is_part) {
            for container in children_of(watcher) {
                send(container, Signal::KILL);
            }
            send(watcher, Signal::KILL);
            until(Duration::from_secs(5), || !alive(watcher));
        }
    }
}

impl Drop for PrivateDocker {
    fn drop(&mut self) {
        if let Some(mut dockerd) = self.dockerd.take() {
            send(dockerd.id(), Signal::CONT);
            end(&mut dockerd);
        }
        end(&mut self.containerd);
        self.end_the_rest();
        for point in mounts_below(self.directory.path()).into_iter().rev() {
            let _ = unmount(&point, UnmountFlags::DETACH); // removing the directory reports a failure
        }
    }
}

fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let errors = log.try_clone().unwrap();
    command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().unwrap()
}

fn end(child: &mut Child) {
    send(child.id(), Signal::TERM);
    if !until(END_TIMEOUT, || child.try_wait().unwrap().is_some()) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}
