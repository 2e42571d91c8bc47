//! `belljar exec`: runs a command in an existing sandbox.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use belljar::config;
use belljar::home::Home;
use belljar::spec::env_file::{self, EnvLine};
use belljar::spec::{OsText, RunId, Size};
use belljar::{Client, Collected, DEFAULT_OUTPUT_LIMIT, Error, Exec};
use serde_json::json;

use super::exec_result::ExecResult;
use super::follow::{Followed, Keyboard, OutputTarget, Role, follow_into};
use super::not_found::{self, Mounts, Programs};
use super::result::write_result;
use super::{CommandResult, find_live, in_runtime, open_home, run_file, terminal};
use crate::cli::ExecArgs;
use crate::report;

#[derive(Debug, thiserror::Error)]
#[error("-e {0}: expected NAME=VALUE, or NAME to pass the host's value")]
struct BadVariable(String);

pub(crate) fn run(args: &ExecArgs) -> i32 {
    let mut run = None;
    act(args, &mut run).unwrap_or_else(|error| {
        let result = ExecResult::not_started(run, error.as_ref());
        match (error.downcast_ref(), args.command.first()) {
            (Some(Error::Exec { failure, .. }), Some(_)) => {
                let command: Vec<OsText> =
                    args.command.iter().map(|word| word.as_os_str().into()).collect();
                not_found::explain(failure, programs(run), &command, Mounts::OfLiveRun);
            }
            _ => report::failure(error.as_ref()),
        }
        result.report(args)
    })
}

fn act(args: &ExecArgs, run: &mut Option<RunId>) -> CommandResult {
    let home = open_home()?;
    let found = find_live(&home, &args.run)?;
    *run = Some(found.id);
    let variables = variables(args, &home)?;
    let mut output = output_target(args, &home, &found.id);
    in_runtime(async {
        let client = Client::connect(home.path(), &found.id).await?;
        let mut exec = client.exec(args.command.clone());
        for (name, value) in variables {
            exec = exec.env(name, value);
        }
        if let Some(directory) = &args.workdir {
            exec = exec.workdir(directory);
        }
        if let Some(span) = args.timeout {
            exec = exec.timeout(Duration::from(span));
        }
        if args.detach {
            let running = exec.lives_on().spawn().await?;
            let object = json!({ "id": found.id, "exec": running.number() });
            running.detach();
            return print_started(args, &object);
        }
        let no_tty = args.no_tty || args.json;
        let (exec, keyboard) = match args.no_stdin {
            true => (exec, Keyboard::None),
            false => with_streams(exec, args.interactive, (args.tty, no_tty)),
        };
        let begun = Instant::now();
        let mut running = exec.spawn().await?;
        let exec = running.number();
        let followed = follow_into(&mut running, Role::Owner, keyboard, &mut output).await?;
        finish(followed);
        Ok(ExecResult::ended(found.id, exec, followed).with_output(output, begun).report(args))
    })
}

/// With `--json` the output is captured, up to the limit.
fn output_target(args: &ExecArgs, home: &Home, run: &RunId) -> OutputTarget {
    if !args.json {
        return OutputTarget::Passed;
    }
    let of_run = || run_file::read(home, run).ok().map(|file| file.spec.limits.output);
    let limit = match args.output_limit {
        Some(Size(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
        None => of_run()
            .map_or(DEFAULT_OUTPUT_LIMIT, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
    };
    OutputTarget::Captured { stdout: Collected::new(limit), stderr: Collected::new(limit) }
}

fn print_started(args: &ExecArgs, object: &serde_json::Value) -> CommandResult {
    if let Some(path) = &args.result {
        write_result(path, object)?;
    }
    if args.json {
        report::json(object)?;
    }
    Ok(0)
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
    {
        report::eprintln(
            "belljar: killed at its time limit (--timeout), with everything it had started",
        );
    }
    followed.code()
}

/// Exit codes 126 and 127, as in `run`.
pub(super) fn not_started(error: Error, command: &[OsText], programs: Programs) -> CommandResult {
    match error {
        Error::Exec { failure, .. } => {
            not_found::explain(&failure, programs, command, Mounts::OfLiveRun);
            Ok(failure.exit_code())
        }
        other => Err(other.into()),
    }
}

/// Where the programs of a live run come from, as its record has it.
fn programs(run: Option<RunId>) -> Programs {
    let known = || {
        let home = open_home().ok()?;
        let run = find_live(&home, run?.as_str()).ok()?;
        let spec = run_file::read(&home, &run.id).ok()?.spec;
        Some(Programs::of(run.backend, &spec))
    };
    known().unwrap_or(Programs::OfImage)
}

/// Those of the files first, so that `-e` wins. A name that the host does not have is left out.
fn variables(
    args: &ExecArgs,
    home: &Home,
) -> Result<Vec<(String, OsString)>, Box<dyn std::error::Error>> {
    let mut lines = Vec::new();
    for path in &args.env_file {
        lines.extend(config::read_env_file(path, home)?);
    }
    for text in &args.env {
        let line = env_file::parse_assignment(text.as_bytes());
        lines.push(line.map_err(|_| BadVariable(belljar::spec::text::escape(text.as_bytes())))?);
    }
    let value = |line| match line {
        EnvLine::Set { name, value } => {
            Some((name, OsStr::from_bytes(value.as_bytes()).to_owned()))
        }
        EnvLine::Pass { name } => std::env::var_os(&name).map(|value| (name, value)),
    };
    Ok(lines.into_iter().filter_map(value).collect())
}
