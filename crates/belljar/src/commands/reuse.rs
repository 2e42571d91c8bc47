//! `run --reuse`: a command in the sandbox of that name, as `exec` would run it.

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

use super::background::{keyboard, tell_id};
use super::exec::{finish, not_begun};
use super::follow::{Keyboard, Role, follow};
use super::{CommandResult, in_runtime, terminal};
use crate::cli::RunArgs;
use crate::report::{self, DIM};

/// What became of looking for the sandbox.
pub(super) enum Entered {
    /// The command ran in it, with this code.
    Here(i32),
    /// There is none, and nobody else can start one while this is held.
    Nowhere(NameLock),
}

#[derive(Debug, thiserror::Error)]
#[error(
    "run {run} is called \"{name}\" and goes with its command, so it is none to reuse; wait for it, \
     stop it, or use another name"
)]
struct NotKept {
    name: String,
    run: RunId,
}

pub(super) fn enter(
    args: &RunArgs,
    home: &Home,
    spec: &RunSpec,
) -> Result<Entered, Box<dyn Error>> {
    let name = spec.name.as_deref().unwrap_or_default();
    let lock = NameLock::take(home, name)?;
    let Some(run) = reuse::live(home, name, &lock)? else { return Ok(Entered::Nowhere(lock)) };
    drop(lock); // it is there, and others may have it too
    in_runtime(run_in(args, home, &run.id, spec)).map(Entered::Here)
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
    let Some(program) = spec.command.first() else { return tell_id(args, run, object) };
    let exec = command(&client, spec, fit);
    if args.detach {
        return match exec.lives_on().spawn().await {
            Ok(running) => {
                std::mem::forget(running); // dropping it would close the command's output
                tell_id(args, run, object)
            }
            Err(error) => not_begun(error, &os(program)),
        };
    }
    if !args.quiet && std::io::stderr().is_terminal() {
        report::eprintln(&format!(
            "{DIM}belljar {}{DIM:#} the sandbox is used again\r",
            run.tail()
        ));
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
        Err(error) => not_begun(error, &os(program)),
    }
}

/// With the variables and the directory that it would have in a sandbox of its own.
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
