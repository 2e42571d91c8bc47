//! Turns a forked process into a command: it locks itself down, attests, waits at a gate, and becomes what
//! was requested.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::wire::{AttestationKind, ENTER_WORKDIR, ExecRequest, InitSetup, Work};
use belljar_spec::{ExecFailure, NotFoundCause, OsText};
use belljar_sys::signal;
use belljar_sys::step;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::attest::{attest, attest_brief};
use super::confine::{ConfineError, LockDownSetup, Readback};
use super::{copy, lock_down as steps, not_found};
use crate::sys::process::{
    adopt_descriptor, arrange_descriptors, begin_session, exec_path, exit_now,
};

/// What the line that holds an attestation begins with.
pub(super) const ATTESTED: &[u8] = b"attested ";
pub(super) const ATTESTED_BRIEF: &[u8] = b"attested_brief ";

/// The command's ends of its streams.
pub(super) struct Inside {
    pub(super) stdio: [OwnedFd; 3],
    pub(super) terminal: Option<OwnedFd>,
}

/// The pipe on which the process reports to PID 1.
pub(super) struct ReportPipe(pub(super) OwnedFd);

impl ReportPipe {
    fn attested(&self, prefix: &[u8], attestation: serde_json::Result<Vec<u8>>) {
        // Strings, numbers and lists: there is nothing that JSON could not hold.
        if let Ok(attestation) = attestation {
            self.send([prefix, &attestation, b"\n"].concat());
        }
    }

    fn send_json(&self, what: &Value) {
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

/// What connects the process with PID 1 until it becomes the command.
pub(super) struct Handed {
    /// Opens with a byte.
    pub(super) gate: OwnedFd,
    pub(super) report: ReportPipe,
    /// What PID 1 found out for a full attestation.
    pub(super) readback: Option<OwnedFd>,
    pub(super) listener_socket: Option<OwnedFd>,
}

/// The order of a lock-down. Ends in the command, or not at all.
pub(super) fn become_command(
    request: &ExecRequest,
    setup: &InitSetup,
    inside: Inside,
    handed: Handed,
) -> ! {
    let handed = match take_places(inside, handed) {
        Ok(handed) => handed,
        Err(error) => {
            // PID 1's descriptor for diagnostics, if it still exists: the report pipe may be gone.
            let why = format!("cannot arrange the command's descriptors: {error}");
            let _ = rustix::io::write(rustix::stdio::stderr(), why.as_bytes());
            exit_now(125)
        }
    };
    let locked_down = lock_down(request, setup, &handed);
    let Handed { gate, report, readback, listener_socket } = handed;
    drop((readback, listener_socket));
    if let Err(error) = locked_down {
        let step = match error {
            ConfineError::Workdir(..) => ENTER_WORKDIR,
            _ => "lock down",
        };
        report.send_json(&json!({ "step": step, "why": belljar_spec::text::error_chain(&error) }));
        exit_now(125);
    }
    let mut byte = [0];
    loop {
        match rustix::io::read(&gate, &mut byte) {
            Ok(1) => break,
            Err(Errno::INTR) => {}
            _ => exit_now(125), // the gate closed without opening
        }
    }
    match &request.work {
        Work::Program { argv } => {
            let failure = execute(request, argv);
            report.send_json(&json!({ "not_executed": failure }));
            exit_now(failure.exit_code())
        }
        work => {
            drop((gate, report)); // as an `exec` would: PID 1 takes it for the start
            exit_now(copy::work(work))
        }
    }
}

/// Streams at 0, 1, 2; then only what connects it with PID 1, all gone at the `exec`.
fn take_places(inside: Inside, handed: Handed) -> Result<Handed, Errno> {
    begin_session()?;
    if let Some(terminal) = &inside.terminal {
        rustix::process::ioctl_tiocsctty(terminal)?;
    }
    let [stdin, stdout, stderr] = inside.stdio;
    let Handed { gate, report, readback, listener_socket } = handed;
    let (is_full, is_traced) = (readback.is_some(), listener_socket.is_some());
    let always = [stdin, stdout, stderr, gate, report.0];
    let all = always.into_iter().chain(readback).chain(listener_socket);
    arrange_descriptors(0, all.collect())?;
    std::mem::forget(inside.terminal); // closed by the arrangement
    let mut numbers = 3..;
    let mut next = || adopt_descriptor(numbers.next().unwrap_or(-1));
    Ok(Handed {
        gate: next()?,
        report: ReportPipe(next()?),
        readback: if is_full { Some(next()?) } else { None },
        listener_socket: if is_traced { Some(next()?) } else { None },
    })
}

fn lock_down(
    request: &ExecRequest,
    setup: &InitSetup,
    handed: &Handed,
) -> Result<(), ConfineError> {
    step("reset signals", signal::reset_all())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let listener_socket = handed.listener_socket.as_ref().map(AsFd::as_fd);
    steps::command(&LockDownSetup { init: setup, listener_socket })?;
    // As the command's user: a directory it may not enter is not entered for it.
    rustix::process::chdir(request.workdir.as_path())
        .map_err(|error| ConfineError::Workdir(request.workdir.clone(), error))?;
    match request.depth {
        AttestationKind::Full => {
            let readback = handed.readback.as_ref();
            let readback = readback.map_or(Readback::NOTHING, Readback::receive);
            let attestation = attest(setup, request, readback)?;
            handed.report.attested(ATTESTED, serde_json::to_vec(&attestation));
        }
        AttestationKind::Brief => {
            let attestation = attest_brief(setup, request)?;
            handed.report.attested(ATTESTED_BRIEF, serde_json::to_vec(&attestation));
        }
    }
    Ok(())
}

/// As a shell finds a program: by name on `PATH`, by path if the name has a slash. Returns on failure.
fn execute(request: &ExecRequest, argv: &[OsText]) -> ExecFailure {
    let cstring = |bytes: &[u8]| CString::new(bytes).ok();
    let arguments: Option<Vec<CString>> = argv.iter().map(|arg| cstring(arg.as_bytes())).collect();
    let env: Option<Vec<CString>> = request
        .env
        .iter()
        .map(|(name, value)| cstring(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let (Some(arguments), Some(env)) = (arguments, env) else {
        return ExecFailure::Other {
            why: "an argument or variable contains a NUL byte".to_owned(),
        };
    };
    let Some(name) = argv.first() else {
        return ExecFailure::Other { why: "there is no command".to_owned() };
    };
    if name.as_bytes().contains(&b'/') {
        let error = cstring(name.as_bytes())
            .map_or(Errno::NOENT, |path| exec_path(&path, &arguments, &env));
        return failure(error, || not_found::cause(name.as_path()));
    }
    let path = request.env.get("PATH").map(|path| path.as_bytes().to_vec()).unwrap_or_default();
    let mut worst = Errno::NOENT;
    let directories = || path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty());
    let in_directory =
        |directory: &[u8]| Path::new(std::ffi::OsStr::from_bytes(directory)).join(name.as_path());
    for directory in directories() {
        let candidate = in_directory(directory);
        let Some(candidate) = cstring(candidate.as_os_str().as_bytes()) else { continue };
        match exec_path(&candidate, &arguments, &env) {
            Errno::NOENT | Errno::NOTDIR => {}
            error => worst = error,
        }
    }
    failure(worst, || {
        directories().find_map(|directory| not_found::cause(&in_directory(directory)))
    })
}

fn failure(error: Errno, cause: impl FnOnce() -> Option<NotFoundCause>) -> ExecFailure {
    match error {
        Errno::NOENT | Errno::NOTDIR => ExecFailure::NotFound { cause: cause() },
        Errno::ACCESS | Errno::NOEXEC | Errno::PERM | Errno::ISDIR => {
            let why = match error {
                Errno::NOEXEC => {
                    "it is not a program for this machine, and has no #! line".to_owned()
                }
                Errno::ISDIR => "it is a directory".to_owned(),
                _ => "permission denied".to_owned(),
            };
            ExecFailure::NotExecutable { why }
        }
        other => ExecFailure::Other { why: std::io::Error::from(other).to_string() },
    }
}
