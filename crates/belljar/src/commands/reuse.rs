//! `run --reuse`: runs a command in the kept sandbox of that name, as `exec` does.

use std::error::Error;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use belljar::home::Home;
use belljar::reuse::{self, Fit, NameLock};
use belljar::spec::wire::control::Keep;
use belljar::spec::{OsText, RunId, RunSpec, RunState};
use belljar::{Client, Exec};
use serde_json::json;

use super::background::{keyboard, print_id};
use super::exec::{finish, not_started};
use super::follow::{Keyboard, Role, follow};
use super::{CommandResult, in_runtime, terminal};
use crate::cli::RunArgs;
use crate::report::{self, DIM};

/// Whether a kept sandbox was found.
pub(super) enum Reuse {
    /// The command ran in it, and ended with this code.
    Exited(i32),
    /// There is none, and no other process can start one while this lock is held.
    NotRunning(NameLock),
}

#[derive(Debug, thiserror::Error)]
#[error(
    "run {run} is called \"{name}\" but was not started with --keep, so it cannot be reused; wait for it, \
     stop it, or use another name"
)]
struct NotKept {
    name: String,
    run: RunId,
}

pub(super) fn enter(args: &RunArgs, home: &Home, spec: &RunSpec) -> Result<Reuse, Box<dyn Error>> {
    let name = spec.name.as_deref().unwrap_or_default();
    let lock = NameLock::take(home, name)?;
    let Some(run) = reuse::live(home, name, &lock)? else { return Ok(Reuse::NotRunning(lock)) };
    drop(lock); // several commands may share the sandbox
    in_runtime(run_in(args, home, &run.id, spec)).map(Reuse::Exited)
}

async fn run_in(args: &RunArgs, home: &Home, run: &RunId, spec: &RunSpec) -> CommandResult {
    let client = Client::connect(home.path(), run).await?;
    let status = client.status().await?;
    if status.keep != Keep::UntilStopped {
        let name = spec.name.clone().unwrap_or_default();
        return Err(NotKept { name, run: *run }.into());
    }
    let fit = reuse::fit(home, run, spec)?;
    let object = json!({
        "id": run, "state": RunState::Running, "backend": status.backend, "reused": true,
    });
    let Some(program) = spec.command.first() else { return print_id(args, run, object) };
    let exec = command(&client, spec, fit);
    if args.detach {
        return match exec.lives_on().spawn().await {
            Ok(running) => {
                running.detach();
                print_id(args, run, object)
            }
            Err(error) => not_started(error, &os(program)),
        };
    }
    if !args.quiet && std::io::stderr().is_terminal() {
        report::eprintln(&format!("{DIM}belljar {}{DIM:#} reusing the sandbox\r", run.tail()));
    }
    let keyboard = keyboard(spec);
    let exec = match keyboard {
        Keyboard::Terminal => {
            let size = terminal::size();
            exec.terminal(size.rows, size.columns)
        }
        Keyboard::Passed => exec.stdin_stream(),
        Keyboard::None => exec,
    };
    match exec.spawn().await {
        Ok(running) => Ok(finish(follow(running, Role::Owner, keyboard).await?)),
        Err(error) => not_started(error, &os(program)),
    }
}

/// The command, with the variables and the working directory that it would have in a new sandbox.
fn command(client: &Client, spec: &RunSpec, fit: Fit) -> Exec {
    let mut exec = client.exec(spec.command.iter().map(os)).workdir(os(&fit.workdir));
    for (name, value) in fit.env {
        exec = match value {
            Some(value) => exec.env(name, os(&value)),
            None => exec.env_remove(name),
        };
    }
    exec
}

fn os(text: &OsText) -> std::ffi::OsString {
    OsStr::from_bytes(text.as_bytes()).to_owned()
}
