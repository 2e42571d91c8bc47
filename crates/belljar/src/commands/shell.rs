//! `belljar shell`: opens a shell in an existing sandbox, or in a new one.

use std::io::IsTerminal;

use belljar::home::Home;
use belljar::spec::RunId;
use belljar::spec::wire::control::Keep;
use belljar::{Client, store};
use clap::Parser;

use super::exec::not_started;
use super::follow::{Keyboard, Role, follow};
use super::not_found::Programs;
use super::{CommandResult, exit_code, find_live, in_runtime, open_home, terminal};
use crate::cli::{Arguments, ShellArgs, Verb};
use crate::report;

/// The shell of the user inside. In a sandbox of an older version the variable names a plain one.
const SHELL: [&str; 3] = [
    "sh",
    "-c",
    "if test -x \"$SHELL\" && test \"$SHELL\" != /bin/sh; then exec \"$SHELL\"; fi; \
     if command -v bash >/dev/null; then exec bash; fi; exec sh",
];

pub(crate) fn run(args: &ShellArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &ShellArgs) -> CommandResult {
    let home = open_home()?;
    let run = match &args.run {
        Some(query) => find_live(&home, query)?.id,
        None => match kept_sandboxes(&home)?.as_slice() {
            [one] => *one,
            others => {
                if !others.is_empty() {
                    let count = others.len();
                    report::eprintln(&format!(
                        "belljar: {count} sandboxes are kept, so this is a new one; to enter one \
                         of them: belljar shell RUN"
                    ));
                }
                return in_new_sandbox();
            }
        },
    };
    in_runtime(async {
        let client = Client::connect(home.path(), &run).await?;
        // A piped script gets no terminal: the shell has to see its end.
        let exec = client.exec(SHELL);
        let (exec, keyboard) = match std::io::stdin().is_terminal() {
            true => {
                let size = terminal::size();
                (exec.terminal(size.rows, size.columns), Keyboard::Terminal)
            }
            false => (exec.stdin_stream(), Keyboard::Passed),
        };
        match exec.spawn().await {
            Ok(running) => Ok(follow(running, Role::Owner, keyboard).await?.code()),
            Err(error) => not_started(error, &["sh".into()], Programs::OfImage),
        }
    })
}

/// Live sandboxes that are kept until they are stopped.
fn kept_sandboxes(home: &Home) -> Result<Vec<RunId>, Box<dyn std::error::Error>> {
    let live = store::list(home, store::Which::Live)?;
    let mut kept = Vec::new();
    let asked = in_runtime(async {
        for run in live {
            // The run may end at any time.
            let Ok(client) = Client::connect(home.path(), &run.id).await else { continue };
            if client.status().await.is_ok_and(|status| status.keep == Keep::UntilStopped) {
                kept.push(run.id);
            }
        }
        Ok(0)
    });
    asked.map(|_| kept)
}

/// As `belljar run -it -- bash`.
fn in_new_sandbox() -> CommandResult {
    let terminal = std::io::stdin().is_terminal().then_some("-t");
    let argv = ["belljar", "run", "-i"].into_iter().chain(terminal).chain(["--"]).chain(SHELL);
    match Arguments::try_parse_from(argv)?.verb {
        Verb::Run(run) => Ok(super::run::run(run)),
        _ => Ok(belljar::spec::EXIT_USAGE),
    }
}
