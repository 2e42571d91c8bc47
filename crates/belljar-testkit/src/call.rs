//! Runs the command with a timeout, and collects its output.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar::store::life;
use rustix::process::Signal;
use serde_json::Value;

use super::Lab;
use super::actor::{Actor, delegated_procs};
use super::engines::EngineAccess;
use super::processes::{send, state, until};
use super::remote_agent::RemoteAgent;

/// Timeout of a call. The machine may be very busy.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The standard input of a call.
#[derive(Debug)]
pub enum Input {
    Null,
    Bytes(Vec<u8>),
    /// A pipe that stays open and empty.
    Open,
}

#[derive(Debug)]
pub struct Call<'a> {
    lab: &'a Lab,
    words: Vec<OsString>,
    wrapper: Vec<OsString>,
    directory: PathBuf,
    variables: Vec<(OsString, OsString)>,
    input: Input,
}

impl<'a> Call<'a> {
    pub(super) fn new(lab: &'a Lab, words: Vec<OsString>) -> Self {
        Self {
            lab,
            words,
            wrapper: Vec::new(),
            directory: lab.work(),
            variables: Vec::new(),
            input: Input::Null,
        }
    }

    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    pub fn from(mut self, directory: PathBuf) -> Self {
        self.directory = directory;
        self
    }

    pub fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Starts `WRAPPER… belljar …`; the wrapper has to end in an `exec`. It is put around one that is there.
    pub fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(OsString::from).chain(self.wrapper).collect();
        self
    }

    /// The same, of a network of the test's own.
    pub fn inside(mut self, world: Vec<OsString>) -> Self {
        self.wrapper = world;
        self
    }

    pub(super) fn home(&self) -> PathBuf {
        self.lab.home()
    }

    /// The process to start, not yet with its streams.
    pub(super) fn command(&self) -> Command {
        let mut line: Vec<OsString> = self.wrapper.clone();
        if self.lab.actor == Actor::Delegated {
            // Stops itself, so that it can be put into its cgroup before it becomes belljar.
            line.extend(["sh", "-c", "kill -STOP $$; exec \"$@\"", "sh"].map(OsString::from));
        }
        line.push(self.lab.exe.clone().into_os_string());
        line.extend(self.words.iter().cloned());
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.lab.person())
            .env("BELLJAR_HOME", self.lab.home())
            .env("TMPDIR", self.lab.path("tmp"))
            .envs(self.lab.engine.iter().flat_map(EngineAccess::variables))
            .envs(self.lab.agent.iter().flat_map(RemoteAgent::variables))
            .envs(self.variables.iter().cloned());
        if let Some(user) = self.lab.actor.user() {
            command.uid(user.uid).gid(user.gid); // std drops the groups with it
        }
        command
    }

    /// The process to start, for a test that holds its streams itself. Its error output is the test's.
    pub fn prepared(&self) -> Command {
        assert_ne!(self.lab.actor, Actor::Delegated, "nobody would put it into its cgroup");
        self.command()
    }

    /// Where the user has delegated cgroups: into them, and then on.
    pub(super) fn enter_cgroups(&self, child: &Child) {
        if self.lab.actor != Actor::Delegated {
            return;
        }
        let pid = child.id();
        assert!(
            until(Duration::from_secs(20), || state(pid) == Some('T')),
            "the shell did not stop itself"
        );
        for procs in delegated_procs() {
            std::fs::write(&procs, pid.to_string())
                .unwrap_or_else(|error| panic!("{}: {error}", procs.display()));
        }
        send(pid, Signal::CONT);
    }

    pub fn spawn(self) -> Live {
        let mut command = self.command();
        let stdin = match &self.input {
            Input::Null => Stdio::null(),
            Input::Bytes(_) | Input::Open => Stdio::piped(),
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        self.enter_cgroups(&child);
        let stdin = child.stdin.take();
        let open_stdin = match (self.input, stdin) {
            (Input::Bytes(bytes), Some(mut pipe)) => {
                // A command that does not read it all closes the pipe early, which is no failure.
                std::thread::spawn(move || drop(pipe.write_all(&bytes)));
                None
            }
            (Input::Open, pipe) => pipe,
            _ => None,
        };
        let stdout = Collected::start(child.stdout.take().unwrap());
        let stderr = Collected::start(child.stderr.take().unwrap());
        let command_line: String = format!("{command:?}").chars().take(2000).collect();
        let home = self.lab.home();
        Live { child: Some(child), command_line, home, begun, stdin: open_stdin, stdout, stderr }
    }

    /// Runs it to its end.
    pub fn done(self) -> Done {
        self.spawn().done()
    }
}

/// Bytes of a stream, collected as they come.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn start(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                shared.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn now(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    /// The stream's end has come within the time.
    fn ended(&self, within: Duration) -> bool {
        until(within, || self.reader.as_ref().is_none_or(JoinHandle::is_finished))
    }
}

/// A running belljar, killed on drop.
#[derive(Debug)]
pub struct Live {
    child: Option<Child>,
    command_line: String,
    home: PathBuf,
    begun: Instant,
    stdin: Option<std::process::ChildStdin>,
    stdout: Collected,
    stderr: Collected,
}

impl Live {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    pub fn type_in(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn wait_for_output(&self, text: &str) {
        let seen = until(CALL_TIMEOUT, || contains(&self.stdout.now(), text.as_bytes()));
        assert!(seen, "{} did not say {text:?} but {}", self.command_line, self.so_far());
    }

    fn so_far(&self) -> String {
        let text = |collected: &Collected| String::from_utf8_lossy(&collected.now()).into_owned();
        format!("stdout {:?}, stderr {:?}", text(&self.stdout), text(&self.stderr))
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    pub fn done(mut self) -> Done {
        let mut child = self.child.take().unwrap();
        let limit = Instant::now() + CALL_TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= limit {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{} hung, and was killed: {}", self.command_line, self.so_far());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let took = self.begun.elapsed();
        let ended = self.stdout.ended(Duration::from_secs(10))
            && self.stderr.ended(Duration::from_secs(10));
        assert!(ended, "{}: something holds its streams open after its end", self.command_line);
        wait_for_index(&self.home);
        let (stdout, stderr) = (self.stdout.now(), self.stderr.now());
        Done { command_line: std::mem::take(&mut self.command_line), status, stdout, stderr, took }
    }
}

/// A run in the foreground ends before its index is written. Belljar's own commands wait for that; tests that read the
/// files of the home themselves do it here. `belljar run` followed by another command has tests of its own.
pub fn wait_for_index(home: &Path) {
    let is_written = |path: &Path| {
        let state = std::fs::read_to_string(path).unwrap_or_default();
        !["stopped", life::CLOSED].contains(&state.trim()) || !life::is_held(path)
    };
    let entries = || std::fs::read_dir(home.join("live")).into_iter().flatten().flatten();
    let all_written = || entries().all(|entry| is_written(&entry.path()));
    assert!(until(CALL_TIMEOUT, all_written), "a run's index is not written");
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// The result of a call.
#[derive(Debug)]
pub struct Done {
    command_line: String,
    status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub took: Duration,
}

impl Done {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The exit code; a belljar that was killed itself is a failure of the test.
    pub fn code(&self) -> i32 {
        let code = self.status.code();
        code.unwrap_or_else(|| {
            panic!("belljar itself ended by signal {:?}: {self}", self.status.signal())
        })
    }

    /// The signal that ended belljar itself.
    pub fn ended_by(&self) -> Option<i32> {
        self.status.signal()
    }

    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code(), code, "{self}");
        self
    }

    /// Asserts that stderr contains each of these texts.
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.err().contains(word), "not said: {word:?}; {self}");
        }
        self
    }

    /// Asserts that stdout contains each of these texts.
    #[track_caller]
    pub fn prints(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.out().contains(word), "not printed: {word:?}; {self}");
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |bytes: &[u8]| -> String {
            String::from_utf8_lossy(&bytes[..bytes.len().min(3000)]).into()
        };
        write!(
            f,
            "{}\n  ended with {} after {:?}\n  stdout: {}\n  stderr: {}",
            self.command_line,
            self.status,
            self.took,
            short(&self.stdout),
            short(&self.stderr)
        )
    }
}
