//! `run -d` and `run --keep`: a supervisor of its own, which outlives this process.

use std::io::IsTerminal;
use std::path::Path;

use belljar::home::Home;
use belljar::run::{LaunchError, Prepared};
use belljar::spec::wire::control::{Bond, Keep, LaunchRequest, Streams};
use belljar::spec::{RunSpec, RunState, Stdin, Terminal};
use belljar::{Client, Destination, LaunchedRun, Supervisors};

use super::follow::{Keyboard, Role, follow};
use super::result::write_result;
use super::{Done, in_runtime, terminal};
use crate::cli::RunArgs;
use crate::report::{self, BOLD, DIM, WARN};

/// Says what is wrong with the plan, if something is, in the words of a run in the foreground.
pub(super) fn unmet(prepared: &Prepared) -> Option<LaunchError> {
    let missing = prepared.dry_run().missing;
    let backend = prepared.plan.backend;
    (!missing.is_empty()).then_some(LaunchError::NotGuaranteed { backend, missing })
}

pub(super) fn start(args: &RunArgs, home: &Home, spec: RunSpec) -> Done {
    let keep = if args.keep { Keep::UntilStopped } else { Keep::WhileCommandRuns };
    let (streams, keyboard) = match (args.leaves(), spec.terminal, spec.stdin) {
        (true, ..) => (Streams::Unwatched, Keyboard::None),
        (false, Terminal::Pty, _) => (Streams::Terminal(terminal::size()), Keyboard::Terminal),
        (false, Terminal::None, Stdin::Passed) => (Streams::InputAndOutput, Keyboard::Passed),
        (false, Terminal::None, Stdin::Null) => (Streams::Output, Keyboard::None),
    };
    if !args.quiet
        && let Some(warning) = ends_at_logout()
    {
        report::say(&format!("{WARN}warning:{WARN:#} {warning}"));
    }
    let supervisors = Supervisors::with_executable(std::env::current_exe()?);
    let request =
        LaunchRequest { home: home.path().into(), spec, keep, bond: Bond::LivesOn, streams };
    in_runtime(async {
        let mut client = Client::over(&supervisors, &Destination::New).await?;
        let launched = client.launch(request, None).await?;
        match launched.command {
            None => tell_started(args, &launched),
            Some(command) => {
                let tell = !args.quiet && std::io::stderr().is_terminal();
                let run = launched.run;
                if tell {
                    let (tail, backend) = (run.tail(), launched.backend);
                    report::say(&format!(
                        "{DIM}belljar {tail}{DIM:#} {BOLD}{backend}{BOLD:#}, attested; it stays\r"
                    ));
                }
                let followed = follow(command, Role::Keeper, keyboard).await?;
                if tell {
                    report::say(&format!(
                        "{DIM}belljar {}{DIM:#} the sandbox stays; to end it: belljar stop {run}",
                        run.tail()
                    ));
                }
                Ok(followed.code())
            }
        }
    })
}

fn tell_started(args: &RunArgs, launched: &LaunchedRun) -> Done {
    let object = serde_json::json!({ "id": launched.run, "state": RunState::Running });
    if let Some(path) = &args.result {
        write_result(path, &object)?;
    }
    if args.json {
        report::json(&object)?;
    } else {
        report::out(&format!("{}\n", launched.run));
    }
    Ok(0)
}

/// Where systemd may end what an ordinary user leaves behind.
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
        "a detached run may be ended when you log out; to let it stay: loginctl enable-linger {user}"
    ))
}

fn user_name(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let of_uid = |line: &&str| line.split(':').nth(2) == Some(uid.to_string().as_str());
    let name = text.lines().find(of_uid).and_then(|line| line.split(':').next());
    name.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned)
}
