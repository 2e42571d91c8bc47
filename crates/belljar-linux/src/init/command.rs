//! One command: the process that will become it, from the fork to the `exec`.
//!
//! The new process locks itself down, attests, and waits at a gate. Everything it has to say goes
//! through one pipe, a line each; the pipe closes by itself when it becomes the command.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::wire::{ExecRequest, InitSetup, Mux, Stdio, WireError};
use belljar_spec::{Attestation, ExecFailure, ExitStatus};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use serde_json::{Value, json};

use super::attest::attest;
use super::confine::{ConfineError, confine};
use super::pump::Pumps;
use super::terminal::Terminal;
use crate::sys::process::{adopt_descriptor, arrange_descriptors, exec_path, exit_now, fork};
use crate::sys::signal;

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{0}")]
    Step(&'static str, #[source] Errno),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("descriptor {0} is not there")]
    NotGiven(i32, #[source] Errno),
}

fn step<T>(name: &'static str, result: Result<T, Errno>) -> Result<T, CommandError> {
    result.map_err(|error| CommandError::Step(name, error))
}

/// Begins the line that holds an attestation.
const ATTESTED: &[u8] = b"attested ";

/// What the process told before it became the command.
pub(super) enum Told {
    /// As text: PID 1 only passes it on, and the launcher reads it as it reads everything from inside.
    Attested(Vec<u8>),
    Failed {
        step: String,
        why: String,
    },
    NotExecuted(ExecFailure),
    Executed,
}

pub(super) struct Command {
    pub(super) pid: Pid,
    pub(super) ended: Option<ExitStatus>,
    pub(super) executed: bool,
    gate: Option<OwnedFd>,
    report: Option<OwnedFd>,
    heard: Vec<u8>,
    failed: bool,
}

/// The command's own ends of its streams.
struct Inside {
    stdio: [OwnedFd; 3],
    terminal: Option<OwnedFd>,
}

impl Command {
    pub(super) fn prepare(
        request: ExecRequest,
        setup: &InitSetup,
        pumps: &mut Pumps,
        mux: &mut Mux,
    ) -> Result<Self, CommandError> {
        let inside = open_streams(&request, setup, pumps, mux)?;
        let (gate_read, gate_write) = step("make a gate", pipe_with(PipeFlags::CLOEXEC))?;
        let (report_read, report_write) = step("make a report", pipe_with(PipeFlags::CLOEXEC))?;
        match step("fork", fork())? {
            None => {
                let told = Telling(report_write);
                become_command(&request, setup, inside, gate_read, told)
            }
            Some(pid) => {
                step(
                    "read the report without waiting",
                    rustix::io::ioctl_fionbio(&report_read, true),
                )?;
                Ok(Self {
                    pid,
                    ended: None,
                    executed: false,
                    gate: Some(gate_write),
                    report: Some(report_read),
                    heard: Vec::new(),
                    failed: false,
                })
            }
        }
    }

    pub(super) fn report(&self) -> Option<BorrowedFd<'_>> {
        self.report.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn let_go(&mut self) {
        if let Some(gate) = self.gate.take() {
            let _ = rustix::io::write(&gate, b"."); // if it is gone, its end is reported
        }
    }

    pub(super) fn read_report(&mut self) -> Vec<Told> {
        const MOST: usize = 1024 * 1024;
        let mut told = Vec::new();
        let mut buffer = [0; 4096];
        while let Some(report) = &self.report {
            match rustix::io::read(report, &mut buffer) {
                Ok(0) => {
                    self.report = None;
                    if !self.failed {
                        self.executed = true;
                        told.push(Told::Executed);
                    }
                }
                Ok(length) if self.heard.len() + length <= MOST => {
                    self.heard.extend_from_slice(&buffer[..length]);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                _ => self.report = None,
            }
            while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                let line = read_line(&line);
                self.failed |= !matches!(line, Told::Attested(_));
                told.push(line);
            }
        }
        told
    }
}

fn read_line(line: &[u8]) -> Told {
    if let Some(attestation) = line.strip_prefix(ATTESTED) {
        return Told::Attested(attestation.trim_ascii_end().to_vec());
    }
    let unreadable =
        || Told::Failed { step: "attest".to_owned(), why: "an unreadable report".to_owned() };
    let Ok(Value::Object(mut map)) = serde_json::from_slice(line) else { return unreadable() };
    let text = |value: Option<Value>| {
        value.and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    };
    if let Some(failure) = map.remove("not_executed") {
        return serde_json::from_value(failure).map_or_else(|_| unreadable(), Told::NotExecuted);
    }
    Told::Failed { step: text(map.remove("step")), why: text(map.remove("why")) }
}

/// The command's streams: pipes that the launcher made, streams of the channel, or a terminal.
fn open_streams(
    request: &ExecRequest,
    setup: &InitSetup,
    pumps: &mut Pumps,
    mux: &mut Mux,
) -> Result<Inside, CommandError> {
    match request.stdio {
        Stdio::Given { stdin, stdout, stderr } => {
            let take = |fd| adopt_descriptor(fd).map_err(|error| CommandError::NotGiven(fd, error));
            Ok(Inside { stdio: [take(stdin)?, take(stdout)?, take(stderr)?], terminal: None })
        }
        Stdio::Streams { stdin, stdout, stderr } => {
            let pipe = || step("make a pipe", pipe_with(PipeFlags::CLOEXEC));
            let (out_read, out_write) = pipe()?;
            let (err_read, err_write) = pipe()?;
            mux.open(stdout)?;
            mux.open(stderr)?;
            pumps.add_outlet(request.exec, stdout, out_read);
            pumps.add_outlet(request.exec, stderr, err_read);
            let input = match stdin {
                Some(stream) => {
                    let (read, write) = pipe()?;
                    mux.open(stream)?;
                    pumps.add_inlet(request.exec, stream, write);
                    read
                }
                None => step("open /dev/null", open_null())?,
            };
            Ok(Inside { stdio: [input, out_write, err_write], terminal: None })
        }
        Stdio::Pty { stream, rows, columns } => {
            mux.open(stream)?;
            let Terminal { ours, theirs } =
                step("make a terminal", Terminal::open(setup.user, rows, columns))?;
            let again =
                |fd: &OwnedFd| step("copy a descriptor", rustix::io::fcntl_dupfd_cloexec(fd, 10));
            let stdio = [again(&theirs)?, again(&theirs)?, again(&theirs)?];
            pumps.add_terminal(request.exec, stream, ours);
            Ok(Inside { stdio, terminal: Some(theirs) })
        }
    }
}

fn open_null() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// The way back to PID 1.
struct Telling(OwnedFd);

impl Telling {
    fn attested(&self, attestation: &Attestation) {
        let mut line = ATTESTED.to_vec();
        // Strings, numbers and lists: there is nothing that JSON could not hold.
        if serde_json::to_writer(&mut line, attestation).is_ok() {
            line.push(b'\n');
            self.send(line);
        }
    }

    fn say(&self, what: &Value) {
        self.send(format!("{what}\n").into_bytes());
    }

    fn send(&self, mut rest: Vec<u8>) {
        while !rest.is_empty() {
            match rustix::io::write(&self.0, &rest) {
                Ok(length) => drop(rest.drain(..length)),
                Err(Errno::INTR) => {}
                Err(_) => return, // PID 1 is gone, and so will we be
            }
        }
    }
}

/// The order of a lock-down. Ends in the command, or not at all.
fn become_command(
    request: &ExecRequest,
    setup: &InitSetup,
    inside: Inside,
    gate: OwnedFd,
    telling: Telling,
) -> ! {
    let (gate, telling) = match take_places(inside, gate, telling) {
        Ok(kept) => kept,
        Err(_) => exit_now(125), // without a way to tell; PID 1 reports the end
    };
    match lock_down(request, setup) {
        Ok(attestation) => telling.attested(&attestation),
        Err(error) => {
            telling.say(&json!({ "step": "lock down", "why": crate::chain(&error) }));
            exit_now(125);
        }
    }
    let mut word = [0];
    loop {
        match rustix::io::read(&gate, &mut word) {
            Ok(1) => break,
            Err(Errno::INTR) => {}
            _ => exit_now(125), // not let go
        }
    }
    let failure = execute(request);
    telling.say(&json!({ "not_executed": failure }));
    exit_now(failure.exit_code())
}

/// Streams at 0, 1, 2; then only the gate and the report, both gone at the `exec`.
fn take_places(
    inside: Inside,
    gate: OwnedFd,
    telling: Telling,
) -> Result<(OwnedFd, Telling), Errno> {
    rustix::process::setsid()?;
    if let Some(terminal) = &inside.terminal {
        rustix::process::ioctl_tiocsctty(terminal)?;
    }
    let [stdin, stdout, stderr] = inside.stdio;
    arrange_descriptors(0, vec![stdin, stdout, stderr, gate, telling.0])?;
    std::mem::forget(inside.terminal); // closed by the arrangement
    Ok((adopt_descriptor(3)?, Telling(adopt_descriptor(4)?)))
}

fn lock_down(request: &ExecRequest, setup: &InitSetup) -> Result<Attestation, ConfineError> {
    signal::reset_all().map_err(|error| ConfineError::Step("reset signals", error))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    confine(setup)?;
    // As the command's user: a directory it may not enter is not entered for it.
    rustix::process::chdir(request.workdir.as_path())
        .map_err(|error| ConfineError::Workdir(request.workdir.clone(), error))?;
    attest(setup, request)
}

/// As a shell finds a program: by name on `PATH`, by path if the name has a slash. Returns on failure.
fn execute(request: &ExecRequest) -> ExecFailure {
    let cstring = |bytes: &[u8]| CString::new(bytes).ok();
    let argv: Option<Vec<CString>> =
        request.argv.iter().map(|arg| cstring(arg.as_bytes())).collect();
    let env: Option<Vec<CString>> = request
        .env
        .iter()
        .map(|(name, value)| cstring(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let (Some(argv), Some(env)) = (argv, env) else {
        return ExecFailure::Other { why: "an argument or variable holds a NUL byte".to_owned() };
    };
    let Some(name) = request.argv.first() else {
        return ExecFailure::Other { why: "there is no command".to_owned() };
    };
    if name.as_bytes().contains(&b'/') {
        let error =
            cstring(name.as_bytes()).map_or(Errno::NOENT, |path| exec_path(&path, &argv, &env));
        return failure(error);
    }
    let path = request.env.get("PATH").map(|path| path.as_bytes().to_vec()).unwrap_or_default();
    let mut worst = Errno::NOENT;
    for directory in path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty()) {
        let candidate = Path::new(std::ffi::OsStr::from_bytes(directory)).join(name.as_path());
        let Some(candidate) = cstring(candidate.as_os_str().as_bytes()) else { continue };
        match exec_path(&candidate, &argv, &env) {
            Errno::NOENT | Errno::NOTDIR => {}
            error => worst = error,
        }
    }
    failure(worst)
}

fn failure(error: Errno) -> ExecFailure {
    match error {
        Errno::NOENT | Errno::NOTDIR => ExecFailure::NotFound,
        Errno::ACCESS | Errno::NOEXEC | Errno::PERM | Errno::ISDIR => {
            let why = match error {
                Errno::NOEXEC => "it is no program for this machine, and has no #! line".to_owned(),
                Errno::ISDIR => "it is a directory".to_owned(),
                _ => "permission denied".to_owned(),
            };
            ExecFailure::NotExecutable { why }
        }
        other => ExecFailure::Other { why: std::io::Error::from(other).to_string() },
    }
}
