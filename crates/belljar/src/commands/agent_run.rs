//! Runs an agent under a supervisor process, and prints its events as they are recorded.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use belljar::home::Home;
use belljar::run::ResumeLock;
use belljar::spec::wire::control::{Bond, Keep, LaunchRequest, StopReport, Streams};
use belljar::spec::{Hint, Limits, ResumeOrigin, RunId, RunState};
use belljar::{Client, Destination, LaunchedRun, Supervisors};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::agent_follow::{self, Form, Until};
use super::background::{ToLaunch, ends_at_logout, with_steps};
use super::result::write_result;
use super::{CommandResult, changes, end_line, in_runtime};
use crate::report::{self, BOLD, DIM, WARN};

/// How long printing may go on after the run has ended.
const PRINT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is printed, and where.
#[derive(Clone, Debug)]
pub(super) struct OutputMode {
    pub(super) attach: Attach,
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) result: Option<PathBuf>,
}

/// Whether this process waits for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// Wait for the run, which ends when this process does.
    Wait,
    Detach,
}

pub(super) fn start(
    mode: &OutputMode,
    home: &Home,
    launch: ToLaunch,
    origin: Option<(Box<ResumeOrigin>, ResumeLock)>,
) -> CommandResult {
    let ToLaunch { spec, secrets, chosen } = launch;
    let limits = spec.limits.clone();
    if mode.attach == Attach::Detach
        && !mode.quiet
        && let Some(warning) = ends_at_logout()
    {
        report::eprintln(&format!("{WARN}warning:{WARN:#} {warning}"));
    }
    let bond = match mode.attach {
        Attach::Wait => Bond::EndsWithConnection,
        Attach::Detach => Bond::LivesOn,
    };
    let (resumed_from, lock) = origin.unzip();
    let supervisors = Supervisors::with_executable(std::env::current_exe()?);
    let request = LaunchRequest {
        home: home.path().into(),
        spec,
        keep: Keep::UntilStopped,
        bond,
        streams: Streams::Unwatched,
        secrets,
        chosen,
        resumed_from,
        ttl_ms: None,
    };
    in_runtime(async {
        let mut client = Client::over(&supervisors, &Destination::New).await?;
        let launched = client.launch(request, None).await?;
        drop(lock); // the new run's record exists by now
        if !mode.quiet {
            launched.skipped_backends.iter().for_each(report::skipped_backend);
        }
        let LaunchedRun { run, backend, skipped_backends, .. } = &launched;
        if mode.attach == Attach::Detach {
            let object = json!({ "id": run, "state": RunState::Running, "backend": backend });
            return print_id(mode, run, with_steps(object, skipped_backends)?);
        }
        let verbose = !mode.quiet && !mode.json;
        if verbose {
            report::eprintln(&format!(
                "{DIM}belljar {}{DIM:#} {BOLD}{backend}{BOLD:#}, attested; run {run}",
                run.tail()
            ));
        }
        let report = follow(home, &client, *run, verbose).await.inspect_err(|_| {
            report::hint(Hint::Resume { run: run.to_string() });
        })?;
        finish(mode, &report, &limits)
    })
}

/// Prints events until the run has ended. The first signal asks the run to stop, the second kills it.
async fn follow(
    home: &Home,
    client: &Client,
    run: RunId,
    verbose: bool,
) -> Result<StopReport, Box<dyn std::error::Error>> {
    let printer = verbose.then(|| {
        let home = home.clone();
        tokio::task::spawn_blocking(move || {
            // A failure to print is ignored: the events are in the record.
            let _ = agent_follow::print(&home, &run, Until::RunEnds, Form::Text, None);
        })
    });
    let mut asked = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let mut graces = [None, Some(Duration::ZERO)].into_iter();
    let stopped = client.stopped();
    tokio::pin!(stopped);
    let report = loop {
        let [interrupt, terminate, hangup] = &mut asked;
        tokio::select! {
            report = &mut stopped => break report?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        client.ask_to_stop(graces.next().unwrap_or(Some(Duration::ZERO)))?;
    };
    if let Some(printer) = printer {
        let _ = tokio::time::timeout(PRINT_TIMEOUT, printer).await; // the reader of our output may be stuck
    }
    Ok(report)
}

fn print_id(mode: &OutputMode, run: &RunId, object: serde_json::Value) -> CommandResult {
    if let Some(path) = &mode.result {
        write_result(path, &object)?;
    }
    if mode.json {
        report::json(&object)?;
    } else {
        report::out(&format!("{run}\n"));
    }
    Ok(0)
}

fn finish(mode: &OutputMode, report: &StopReport, limits: &Limits) -> CommandResult {
    let code = report.exit.process_code();
    let object = json!({
        "id": report.run,
        "outcome": if code == 0 { "succeeded" } else { "failed" },
        "reason": report.reason,
        "exit": report.exit,
        "detail": report.detail,
        "agent": report.agent,
        "workspace": report.workspace,
        "usage": report.usage,
    });
    if let Some(path) = &mode.result {
        write_result(path, &object)?;
    }
    if let Some(line) = end_line::of_agent(report, limits) {
        report::eprintln(&format!("{WARN}belljar:{WARN:#} {line}"));
    }
    if mode.json {
        report::json(&object)?;
        return Ok(code);
    }
    if let Some(detail) = &report.detail {
        report::eprintln(&format!("{WARN}error:{WARN:#} belljar stopped the run: {detail}"));
    }
    if let Some(leak) = &report.leak {
        report::eprintln(&format!("{WARN}warning:{WARN:#} the run left something behind: {leak}"));
    }
    if !mode.quiet && std::io::stderr().is_terminal() {
        changes::print_change_count(&report.run, report.workspace.as_ref());
    }
    Ok(code)
}
