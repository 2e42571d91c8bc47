//! `run --reuse`: runs a command in the kept sandbox of that name, as `exec` does.

use std::error::Error;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use belljar::home::Home;
use belljar::reuse::{self, Fit, NameLock};
use belljar::spec::wire::control::Keep;
use belljar::spec::{OsText, RunId, RunSpec, RunState};
use belljar::{Client, Exec, NetworkAccess, NetworkList};
use serde_json::json;

use super::background::{keyboard, print_id};
use super::exec::{finish, not_started};
use super::follow::{Keyboard, Role, follow};
use super::not_found::Programs;
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

#[derive(Debug, thiserror::Error)]
#[error(
    "the network list of the sandbox \"{name}\" was changed since its start, so this command would get another one \
     than it asks for; see it with belljar network {name}, change it back with --set, or stop the sandbox"
)]
struct NetworkChanged {
    name: String,
}

/// A command never gets more or less than it asks for.
async fn check_network(client: &Client, spec: &RunSpec) -> Result<(), Box<dyn Error>> {
    let state = client.network().await?;
    let sorted = |list: NetworkList| {
        let NetworkList { reach, mut allow, mut allow_private, mut routes, .. } = list;
        allow.sort();
        allow_private.sort();
        routes.sort_unstable();
        (reach, allow, allow_private, routes)
    };
    let is_same = sorted(state.list) == sorted(NetworkList::of(spec));
    if state.access != NetworkAccess::Proxy || is_same {
        return Ok(());
    }
    Err(NetworkChanged { name: spec.name.clone().unwrap_or_default() }.into())
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
    check_network(&client, spec).await?;
    if let Some(ttl) = args.ttl {
        client.renew(Some(ttl.as_duration())).await?;
    }
    let object = json!({
        "id": run, "state": RunState::Running, "backend": status.backend, "reused": true,
    });
    if spec.command.is_empty() {
        return print_id(args, run, object);
    }
    let programs = Programs::of(Some(status.backend), spec);
    let exec = command(&client, spec, fit);
    if args.detach {
        return match exec.lives_on().spawn().await {
            Ok(running) => {
                running.detach();
                print_id(args, run, object)
            }
            Err(error) => not_started(error, &spec.command, programs),
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
        Err(error) => not_started(error, &spec.command, programs),
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
