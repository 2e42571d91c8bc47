//! `belljar exec`: runs a command in an existing sandbox.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use belljar::{Client, Error, Exec};

use super::follow::{Followed, Keyboard, Role, follow};
use super::{CommandResult, exit_code, find_live, in_runtime, open_home, terminal};
use crate::cli::ExecArgs;
use crate::report;

#[derive(Debug, thiserror::Error)]
#[error("-e {0}: expected NAME=VALUE, or NAME to pass the host's value")]
struct BadVariable(String);

pub(crate) fn run(args: ExecArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: ExecArgs) -> CommandResult {
    let home = open_home()?;
    let found = find_live(&home, &args.run)?;
    let program = args.command.first().cloned().unwrap_or_default();
    in_runtime(async {
        let client = Client::connect(home.path(), &found.id).await?;
        let mut exec = client.exec(args.command);
        for variable in &args.env {
            exec = with_variable(exec, variable)?;
        }
        if let Some(directory) = args.workdir {
            exec = exec.workdir(directory);
        }
        if let Some(span) = args.timeout {
            exec = exec.timeout(Duration::from(span));
        }
        if args.detach {
            return match exec.lives_on().spawn().await {
                Ok(running) => {
                    running.detach();
                    Ok(0)
                }
                Err(error) => not_started(error, &program),
            };
        }
        let (exec, keyboard) = with_streams(exec, args.interactive, (args.tty, args.no_tty));
        match exec.spawn().await {
            Ok(running) => Ok(finish(follow(running, Role::Owner, keyboard).await?)),
            Err(error) => not_started(error, &program),
        }
    })
}

/// A terminal where the caller has one; else standard input, unless that is a keyboard.
pub(super) fn with_streams(
    exec: Exec,
    interactive: bool,
    (tty, no_tty): (bool, bool),
) -> (Exec, Keyboard) {
    if terminal::wanted(tty, no_tty) {
        let size = terminal::size();
        return (exec.terminal(size.rows, size.columns), Keyboard::Terminal);
    }
    if interactive || !std::io::stdin().is_terminal() {
        return (exec.stdin_stream(), Keyboard::Passed);
    }
    (exec, Keyboard::None)
}

pub(super) fn finish(followed: Followed) -> i32 {
    if let Followed::Exited(exit) = followed
        && exit.source == belljar::spec::ExitSource::Deadline
        && std::io::stderr().is_terminal()
    {
        report::eprintln(
            "belljar: the command timed out and was killed, with everything it had started",
        );
    }
    followed.code()
}

/// Exit codes 126 and 127, as in `run`.
pub(super) fn not_started(error: Error, program: &OsStr) -> CommandResult {
    match error {
        Error::Exec { failure, .. } => {
            report::not_executed(&belljar::spec::OsText::from(program).to_string(), &failure);
            Ok(failure.exit_code())
        }
        other => Err(other.into()),
    }
}

fn with_variable(exec: Exec, text: &OsStr) -> Result<Exec, BadVariable> {
    let bytes = text.as_bytes();
    let bad = || BadVariable(belljar::spec::text::escape(bytes));
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (bytes, std::env::var_os(text)),
    };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).ok_or_else(bad)?;
    Ok(match value {
        Some(value) => exec.env(name, value),
        None => exec, // not set on the host
    })
}
