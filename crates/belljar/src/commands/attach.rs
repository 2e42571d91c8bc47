//! `belljar attach`: attaches to the command of a detached run.

use std::io::IsTerminal;

use belljar::Client;
use belljar::spec::wire::control::Streams;
use belljar::spec::{Stdin, Terminal};

use super::follow::{Followed, Keyboard, Role, follow};
use super::{
    CommandResult, exit_code, find_live_or_newest, in_runtime, open_home, run_file, terminal,
};
use crate::cli::AttachArgs;
use crate::report;

pub(crate) fn run(args: &AttachArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &AttachArgs) -> CommandResult {
    let home = open_home()?;
    let found = find_live_or_newest(&home, args.run.as_deref())?;
    let spec = run_file::read(&home, &found.id)?.spec;
    let (streams, keyboard) = match (spec.terminal, spec.stdin) {
        (Terminal::Pty, _) if args.no_stdin => {
            (Streams::Terminal(terminal::size()), Keyboard::None)
        }
        (Terminal::Pty, _) => (Streams::Terminal(terminal::size()), Keyboard::Terminal),
        (Terminal::None, Stdin::Passed) if !args.no_stdin => {
            (Streams::InputAndOutput, Keyboard::Passed)
        }
        (Terminal::None, _) => (Streams::Output, Keyboard::None),
    };
    in_runtime(async {
        let client = Client::connect(home.path(), &found.id).await?;
        let running = client.attach(streams).await?;
        let followed = follow(running, Role::Viewer, keyboard).await?;
        if let Followed::Detached(_) = followed
            && std::io::stderr().is_terminal()
        {
            let run = found.id.tail();
            report::eprintln(&format!(
                "\nbelljar {run} keeps running; to attach again: belljar attach {run}"
            ));
        }
        Ok(followed.code())
    })
}
