//! A test network with a hostile resolver, web servers with and without TLS, and servers at forbidden addresses.
//!
//! Runs are started inside it, so that nothing is ever sent to a real host. The verdict is what its servers counted.
//!
//! It is a process (`belljar __probe world DIRECTORY`), since a namespace needs one. Processes enter it through
//! `belljar __probe in-world PID PROGRAM …`.

mod certificates;
mod counts;
mod dns;
mod forward;
mod http1;
mod http2;
pub mod names;
mod network;
mod open_proxy;
pub(crate) mod pages;
mod serve;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

pub use counts::{Request, ServerCounts};

use crate::probe::PROBE;

/// What the servers' certificates are signed by, in the world's directory.
pub const AUTHORITY: &str = "world-ca.pem";
/// What the servers have below `/files/`, in the world's directory.
pub const FILES: &str = "files";
/// In the world's directory, before it starts: names that are relayed to a Unix socket, as `NAME SOCKET` lines.
pub const FORWARDS: &str = "forward";

const READY: &str = "ready";
pub(crate) const WORLD: &str = "world";
pub(crate) const IN_WORLD: &str = "in-world";

#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("cannot {0}")]
    Step(&'static str, #[source] std::io::Error),
    #[error("no certificate for the servers: {0}")]
    Certificate(String),
    #[error("/etc/resolv.conf names no resolver, so nothing could be resolved here either")]
    NoResolver,
    #[error("the world has ended: {0}")]
    Gone(String),
}

/// One that is there. It ends when this is dropped.
#[derive(Debug)]
pub struct World {
    child: Child,
    belljar: PathBuf,
    directory: PathBuf,
    talk: Mutex<Talk>,
}

#[derive(Debug)]
struct Talk {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The user that creates the test network, and so can enter it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// The user of this process.
    Caller,
    /// Another user. Needs root.
    User { uid: u32, gid: u32 },
}

impl World {
    /// `directory` is the world's own, and must be its maker's.
    pub fn start(belljar: &Path, directory: &Path, maker: Maker) -> Result<Self, WorldError> {
        let step = |what: &'static str| move |error: std::io::Error| WorldError::Step(what, error);
        let mut command = Command::new(belljar);
        command.args([PROBE, WORLD]).arg(directory).env_clear();
        if let Maker::User { uid, gid } = maker {
            command.uid(uid).gid(gid);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(step("start the world"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(WorldError::Gone("it has no streams".to_owned()));
        };
        let talk = Mutex::new(Talk { to, from: BufReader::new(from) });
        let (belljar, directory) = (belljar.to_owned(), directory.to_owned());
        let mut world = Self { child, belljar, directory, talk };
        let first = world.read_reply();
        if first.as_deref().ok() == Some(READY) { Ok(world) } else { Err(world.exit_error()) }
    }

    fn read_reply(&self) -> Result<String, WorldError> {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        read_reply(&mut talk)
    }

    fn ask(&self, request: &str) -> Result<String, WorldError> {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(talk.to, "{request}").map_err(|error| WorldError::Gone(error.to_string()))?;
        read_reply(&mut talk)
    }

    fn exit_error(&mut self) -> WorldError {
        let mut stderr = String::new();
        if let Some(mut from) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut from, &mut stderr); // may be empty
        }
        let stderr = stderr.trim().to_owned();
        if stderr.contains("names no resolver") {
            WorldError::NoResolver
        } else {
            WorldError::Gone(stderr)
        }
    }

    /// What was seen since the last reset. One that has just connected may not be counted yet.
    pub fn seen(&self) -> Result<ServerCounts, WorldError> {
        std::thread::sleep(std::time::Duration::from_millis(30));
        let line = self.ask("seen")?;
        serde_json::from_str(&line).map_err(|error| WorldError::Gone(error.to_string()))
    }

    pub fn reset(&self) -> Result<(), WorldError> {
        self.ask("reset").map(drop)
    }

    /// The arguments before a command that is to run in it. They end in an `exec`.
    pub fn wrapper(&self) -> Vec<OsString> {
        let pid = self.child.id().to_string();
        let argv = [PROBE, IN_WORLD, &pid].map(OsString::from);
        [self.belljar.clone().into_os_string()].into_iter().chain(argv).collect()
    }

    /// The certificate of its servers' authority.
    pub fn authority(&self) -> PathBuf {
        self.directory.join(AUTHORITY)
    }

    /// Where to put what the servers are to have below `/files/`.
    pub fn files(&self) -> PathBuf {
        self.directory.join(FILES)
    }
}

fn read_reply(talk: &mut Talk) -> Result<String, WorldError> {
    let mut line = String::new();
    match talk.from.read_line(&mut line) {
        Ok(0) => Err(WorldError::Gone("its output has ended".to_owned())),
        Ok(_) => Ok(line.trim_end().to_owned()),
        Err(error) => Err(WorldError::Gone(error.to_string())),
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill(); // ended by itself is as good
        let _ = self.child.wait();
    }
}

/// `world DIRECTORY`.
pub(crate) fn serve(directory: &Path) -> i32 {
    match serve::run(directory) {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

/// `in-world PID PROGRAM ARG…`: becomes that program, in the world of that process.
pub(crate) fn become_one_of_it(pid: u32, program: &[OsString]) -> i32 {
    let Some((program, rest)) = program.split_first() else { return 1 };
    if let Err(error) = network::enter(pid) {
        return failed(&error);
    }
    let error = Command::new(program).args(rest).exec();
    failed(&WorldError::Step("start the program in the world", error))
}

fn failed(error: &WorldError) -> i32 {
    let _ = writeln!(std::io::stderr(), "world: {}", belljar_spec::text::error_chain(error)); // there is no other place to report it
    1
}
