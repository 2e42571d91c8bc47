//! `belljar ps`: lists runs.

use std::io::IsTerminal;
use std::net::SocketAddr;

use belljar::home::Home;
use belljar::network::network_report;
use belljar::spec::egress::Published;
use belljar::spec::text::escape;
use belljar::store::{self, RunInfo, Which};
use belljar::workspace::is_unreviewed;

use serde::Serialize;

use super::{CommandResult, exit_code, open_home, run_file, time_format};
use crate::cli::PsArgs;
use crate::report::{self, BOLD};

/// Longer names are cut, so that the table fits a terminal.
const MAX_NAME_WIDTH: usize = 16;

pub(crate) fn run(args: &PsArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &PsArgs) -> CommandResult {
    let home = open_home()?;
    let mut runs = store::list(&home, if args.all { Which::All } else { Which::Live })?;
    if args.name.is_some() {
        runs.retain(|run| run.name == args.name);
    }
    if args.json {
        let listed: Vec<Listed> = runs
            .iter()
            .map(|run| Listed {
                run,
                ports: ports(&home, run),
                unreviewed: waits_for_review(&home, run),
                disk_bytes: disk_bytes(&home, run),
            })
            .collect();
        report::json(&listed)?;
    } else if args.quiet {
        report::out(&runs.iter().map(|run| format!("{}\n", run.id)).collect::<String>());
    } else {
        let columns = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
        let columns = columns.map_or(80, |size| usize::from(size.ws_col.max(60)));
        let most = if std::io::stdout().is_terminal() { columns } else { usize::MAX };
        let ports: Vec<String> = runs.iter().map(|run| shown(&ports(&home, run))).collect();
        let disk: Vec<String> = runs.iter().map(|run| short_size(disk_bytes(&home, run))).collect();
        let states: Vec<String> = runs.iter().map(|run| shown_state(&home, run)).collect();
        report::out(&table(&runs, &Cells { ports, disk, states }, most));
        let waiting = runs.iter().filter(|run| waits_for_review(&home, run)).count();
        if waiting > 0 && std::io::stdout().is_terminal() {
            report::eprintln(&format!(
                "{waiting} to review: belljar diff RUN, then belljar apply RUN or belljar discard RUN"
            ));
        }
    }
    Ok(0)
}

/// A run as `--json` prints it.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    run: &'a RunInfo,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<Published>,
    /// Its changes were neither applied nor discarded.
    unreviewed: bool,
    /// What the run keeps on disk: its files and the changes of its overlays, as they were at its end.
    disk_bytes: u64,
}

/// Whether an ended run has changes that wait for `diff`, `apply` or `discard`.
fn waits_for_review(home: &Home, run: &RunInfo) -> bool {
    !run.is_live() && is_unreviewed(home, &run.id)
}

/// From the record and one directory: no tree is walked.
fn disk_bytes(home: &Home, run: &RunInfo) -> u64 {
    let files = std::fs::read_dir(home.run_dir(&run.id)).into_iter().flatten().flatten();
    let sizes = files.filter_map(|file| file.metadata().ok().filter(|found| found.is_file()));
    let own: u64 = sizes.map(|found| found.len()).sum();
    let changes = match waits_for_review(home, run) {
        true => run_file::read(home, &run.id)
            .ok()
            .and_then(|file| Some(file.outcome?.workspace?.bytes))
            .unwrap_or(0),
        false => 0,
    };
    own.saturating_add(changes)
}

/// The published ports of a live run, from its record.
fn ports(home: &Home, run: &RunInfo) -> Vec<Published> {
    let publishes = |file: &run_file::RunFile| !file.spec.egress.publish.is_empty();
    if !run.is_live() || !run_file::read(home, &run.id).is_ok_and(|file| publishes(&file)) {
        return Vec::new();
    }
    network_report(home, &run.id).map_or(Vec::new(), |account| account.ports)
}

fn shown(ports: &[Published]) -> String {
    let one = |published: &Published| {
        format!("{}->{}", SocketAddr::new(published.address, published.host_port), published.port)
    };
    ports.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The columns that the table does not take from the list of runs.
struct Cells {
    ports: Vec<String>,
    disk: Vec<String>,
    states: Vec<String>,
}

fn shown_state(home: &Home, run: &RunInfo) -> String {
    match waits_for_review(home, run) {
        true => format!("{}, review", state(run)),
        false => state(run),
    }
}

/// In the largest unit that leaves at least 1.
fn short_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}K", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{}M", bytes >> 20),
        _ => format!("{}.{}G", bytes >> 30, ((bytes % (1 << 30)) * 10) >> 30),
    }
}

fn table(runs: &[RunInfo], cells: &Cells, most: usize) -> String {
    let Cells { ports, disk, states } = cells;
    let names = runs.iter().map(|run| name(run).chars().count());
    let width = names.max().unwrap_or(0).max("NAME".len());
    let state_widths = states.iter().map(|state| state.chars().count());
    let state_width = state_widths.max().unwrap_or(0).max(10);
    let widest = ports.iter().map(String::len).max().unwrap_or(0);
    // The column is left out if no run has ports.
    let widest = if widest == 0 { 0 } else { widest.max("PORTS".len()) + 2 };
    let row = |cells: [&str; 8]| {
        let [tail, name, state, backend, age, disk, ports, command] = cells;
        let line = format!(
            "{tail:<7}  {name:<width$}  {state:<state_width$}  {backend:<7}  {age:>4}  {disk:>5}  {ports:<widest$}"
        );
        cut(&format!("{line}{command}"), most).trim_end().to_owned()
    };
    let ports_head = if widest == 0 { "" } else { "PORTS" };
    let head = row(["RUN", "NAME", "STATE", "BACKEND", "AGE", "DISK", ports_head, "COMMAND"]);
    let mut text = format!("{BOLD}{head}{BOLD:#}\n");
    for (at, run) in runs.iter().enumerate() {
        let backend = run.backend.map_or("-", |backend| backend.name());
        let age = time_format::age(run.created_ms);
        let name = name(run);
        let (state, disk, ports) = (&states[at], &disk[at], &ports[at]);
        text.push_str(&row([
            run.id.tail(),
            &name,
            state,
            backend,
            &age,
            disk,
            ports,
            command(run),
        ]));
        text.push('\n');
    }
    text
}

fn name(run: &RunInfo) -> String {
    run.name.as_deref().map_or("-".to_owned(), |name| cut(&escape(name.as_bytes()), MAX_NAME_WIDTH))
}

fn command(run: &RunInfo) -> &str {
    if run.command.is_empty() { "(kept for exec)" } else { &run.command }
}

/// The state of a live run, or how a run ended.
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
