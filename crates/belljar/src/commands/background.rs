//! `run -d` and `run --keep`: starts a run under a supervisor process that outlives this one.

use std::io::IsTerminal;
use std::path::Path;

use belljar::home::Home;
use belljar::reuse::NameLock;
use belljar::spec::egress::SecretValue;
use belljar::spec::wire::control::{Bond, ChosenPlan, Keep, LaunchRequest, Streams};
use belljar::spec::{
    ExecFailure, Exit, ExitSource, RunId, RunSpec, RunState, SkippedBackend, Stdin, Terminal,
};
use belljar::{Client, Destination, LaunchedRun, Supervisors};
use serde_json::{Value, json};

use super::follow::{Keyboard, Role, follow};
use super::result::write_result;
use super::run::explain_failure;
use super::{CommandResult, in_runtime, terminal};
use crate::cli::RunArgs;
use crate::report::{self, BOLD, DIM, WARN};

/// What a supervisor process is started with.
pub(super) struct ToLaunch {
    pub(super) spec: RunSpec,
    pub(super) secrets: Vec<SecretValue>,
    /// What was prepared for the spec already.
    pub(super) chosen: Option<Box<ChosenPlan>>,
}

/// Starts the run; holds the lock on `name` until the run can be found by that name.
pub(super) fn start(
    args: &RunArgs,
    home: &Home,
    launch: ToLaunch,
    name: Option<NameLock>,
) -> CommandResult {
    let ToLaunch { spec, secrets, chosen } = launch;
    let given = spec.clone();
    let keep = if args.keeps() { Keep::UntilStopped } else { Keep::WhileCommandRuns };
    let (streams, keyboard) = match (args.is_detached(), keyboard(&spec)) {
        (true, _) => (Streams::Unwatched, Keyboard::None),
        (false, Keyboard::Terminal) => (Streams::Terminal(terminal::size()), Keyboard::Terminal),
        (false, Keyboard::Passed) => (Streams::InputAndOutput, Keyboard::Passed),
        (false, Keyboard::None) => (Streams::Output, Keyboard::None),
    };
    if !args.quiet
        && let Some(warning) = ends_at_logout()
    {
        report::eprintln(&format!("{WARN}warning:{WARN:#} {warning}"));
    }
    let supervisors = Supervisors::with_executable(std::env::current_exe()?);
    let request = LaunchRequest {
        home: home.path().into(),
        spec,
        keep,
        bond: Bond::LivesOn,
        streams,
        secrets,
        chosen,
        resumed_from: None,
        ttl_ms: args.ttl(),
    };
    in_runtime(async {
        let mut client = Client::over(&supervisors, &Destination::New).await?;
        let launched = client.launch(request, None).await?;
        drop(name);
        if !args.quiet {
            launched.skipped_backends.iter().for_each(report::skipped_backend);
        }
        match launched.command {
            None => {
                let LaunchedRun { run, backend, skipped_backends, .. } = &launched;
                if !given.command.is_empty()
                    && let Err(failure) = client.executed().await?
                {
                    return not_executed(args, &launched, &given, &failure);
                }
                let object = json!({ "id": run, "state": RunState::Running, "backend": backend });
                print_id(args, run, with_steps(object, skipped_backends)?)
            }
            Some(command) => {
                let verbose = !args.quiet && std::io::stderr().is_terminal();
                let run = launched.run;
                if verbose {
                    let (tail, backend) = (run.tail(), launched.backend);
                    report::eprintln(&format!(
                        "{DIM}belljar {tail}{DIM:#} {BOLD}{backend}{BOLD:#}, attested; the sandbox is kept\r"
                    ));
                }
                let followed = follow(command, Role::Keeper, keyboard).await?;
                if verbose {
                    report::eprintln(&format!(
                        "{DIM}belljar {}{DIM:#} the sandbox is kept; to stop it: belljar stop {run}",
                        run.tail()
                    ));
                }
                Ok(followed.code())
            }
        }
    })
}

/// The command does not exist, or cannot be executed: the run is over.
fn not_executed(
    args: &RunArgs,
    launched: &LaunchedRun,
    spec: &RunSpec,
    failure: &ExecFailure,
) -> CommandResult {
    let exit = Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox);
    let object = json!({
        "id": launched.run, "state": RunState::Stopped, "backend": launched.backend,
        "exit": exit, "failure": failure,
    });
    let object = with_steps(object, &launched.skipped_backends)?;
    if let Some(path) = &args.result {
        write_result(path, &object)?;
    }
    if args.json {
        report::json(&object)?;
    } else {
        explain_failure(failure, launched.backend, spec);
    }
    Ok(exit.process_code())
}

/// How the caller's standard input reaches the run's command.
pub(super) fn keyboard(spec: &RunSpec) -> Keyboard {
    match (spec.terminal, spec.stdin) {
        (Terminal::Pty, _) => Keyboard::Terminal,
        (Terminal::None, Stdin::Passed) => Keyboard::Passed,
        (Terminal::None, Stdin::Null) => Keyboard::None,
    }
}

pub(super) fn with_steps(
    mut object: Value,
    skipped_backends: &[SkippedBackend],
) -> Result<Value, serde_json::Error> {
    if !skipped_backends.is_empty() {
        object["skipped_backends"] = serde_json::to_value(skipped_backends)?;
    }
    Ok(object)
}

/// Prints the id of a detached run.
pub(super) fn print_id(args: &RunArgs, run: &RunId, object: Value) -> CommandResult {
    if let Some(path) = &args.result {
        write_result(path, &object)?;
    }
    if args.json {
        report::json(&object)?;
    } else {
        report::out(&format!("{run}\n"));
    }
    Ok(0)
}

/// A warning where systemd may kill a detached run of an ordinary user at logout.
pub(super) fn ends_at_logout() -> Option<String> {
    let uid = rustix::process::geteuid();
    if uid.is_root() || !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let user = user_name(uid.as_raw())?;
    if Path::new("/var/lib/systemd/linger").join(&user).exists() {
        return None;
    }
    let user = belljar::spec::text::escape(user.as_bytes());
    Some(format!(
        "a detached run may be killed when you log out; to keep it: loginctl enable-linger {user}"
    ))
}

fn user_name(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let of_uid = |line: &&str| line.split(':').nth(2) == Some(uid.to_string().as_str());
    let name = text.lines().find(of_uid).and_then(|line| line.split(':').next());
    name.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned)
}
