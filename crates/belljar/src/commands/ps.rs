//! `belljar ps`: what runs there are.

use std::io::IsTerminal;

use belljar::spec::text::escape;
use belljar::store::{self, RunInfo, Which};

use super::{Done, open_home, told, when};
use crate::cli::PsArgs;
use crate::report::{self, BOLD};

/// A longer name is cut: the table must fit a terminal.
const WIDEST_NAME: usize = 16;

pub(crate) fn run(args: &PsArgs) -> i32 {
    told(act(args))
}

fn act(args: &PsArgs) -> Done {
    let home = open_home()?;
    let mut runs = store::list(&home, if args.all { Which::All } else { Which::Live })?;
    if args.name.is_some() {
        runs.retain(|run| run.name == args.name);
    }
    if args.json {
        report::json(&runs)?;
    } else if args.quiet {
        report::out(&runs.iter().map(|run| format!("{}\n", run.id)).collect::<String>());
    } else {
        let columns = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
        let columns = columns.map_or(80, |size| usize::from(size.ws_col.max(60)));
        let most = if std::io::stdout().is_terminal() { columns } else { usize::MAX };
        report::out(&table(&runs, most));
    }
    Ok(0)
}

fn table(runs: &[RunInfo], most: usize) -> String {
    let names = runs.iter().map(|run| name(run).chars().count());
    let width = names.max().unwrap_or(0).max("NAME".len());
    let row = |cells: [&str; 6]| {
        let [tail, name, state, backend, age, command] = cells;
        let line = format!("{tail:<7}  {name:<width$}  {state:<10}  {backend:<7}  {age:>4}  ");
        cut(&format!("{line}{command}"), most).trim_end().to_owned()
    };
    let head = row(["RUN", "NAME", "STATE", "BACKEND", "AGE", "COMMAND"]);
    let mut text = format!("{BOLD}{head}{BOLD:#}\n");
    for run in runs {
        let backend = run.backend.map_or("-", |backend| backend.name());
        let age = when::age(run.created_ms);
        let (name, state) = (name(run), state(run));
        text.push_str(&row([run.id.tail(), &name, &state, backend, &age, command(run)]));
        text.push('\n');
    }
    text
}

fn name(run: &RunInfo) -> String {
    run.name.as_deref().map_or("-".to_owned(), |name| cut(&escape(name.as_bytes()), WIDEST_NAME))
}

fn command(run: &RunInfo) -> &str {
    if run.command.is_empty() { "(kept for exec)" } else { &run.command }
}

/// Where it is, or how it ended.
pub(super) fn state(run: &RunInfo) -> String {
    use belljar::spec::StopReason::{Exited, Signal};
    match (run.reason, run.exit) {
        (Some(reason), Some(exit)) if !run.is_live() => match (reason, exit.code, exit.signal) {
            (Exited, Some(code), _) => format!("exited {code}"),
            (Signal, _, Some(signal)) => format!("signal {signal}"),
            _ => reason.name().to_owned(),
        },
        (Some(reason), None) if !run.is_live() => reason.name().to_owned(),
        _ => run.state.name().to_owned(),
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}
