//! A run with an agent: a supervisor of its own carries it, and what the record says of it is shown as it comes.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use belljar::home::Home;
use belljar::run::ResumeLock;
use belljar::spec::egress::SecretValue;
use belljar::spec::wire::control::{Bond, Keep, LaunchRequest, StopReport, Streams};
use belljar::spec::{ResumeOrigin, RunId, RunSpec, RunState};
use belljar::{Client, Destination, LaunchedRun, Supervisors};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::agent_follow::{self, Form, Until};
use super::background::{ends_at_logout, with_steps};
use super::result::write_result;
use super::{CommandResult, changes, in_runtime};
use crate::report::{self, BOLD, DIM, WARN};

/// From the end of the run to the last line.
const PRINTED_WITHIN: Duration = Duration::from_secs(10);

/// How the caller wants to be told.
#[derive(Clone, Debug)]
pub(super) struct OutputMode {
    pub(super) stay: Attach,
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) result: Option<PathBuf>,
}

/// Whether this process waits for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// And is its owner: without it the run ends.
    Here,
    Leave,
}

pub(super) fn start(
    manner: &OutputMode,
    home: &Home,
    spec: RunSpec,
    secrets: Vec<SecretValue>,
    birth: Option<(Box<ResumeOrigin>, ResumeLock)>,
) -> CommandResult {
    if manner.stay == Attach::Leave
        && !manner.quiet
        && let Some(warning) = ends_at_logout()
    {
        report::eprintln(&format!("{WARN}warning:{WARN:#} {warning}"));
    }
    let bond = match manner.stay {
        Attach::Here => Bond::EndsWithConnection,
        Attach::Leave => Bond::LivesOn,
    };
    let (birth, lock) = birth.unzip();
    let supervisors = Supervisors::with_executable(std::env::current_exe()?);
    let request = LaunchRequest {
        home: home.path().into(),
        spec,
        keep: Keep::UntilStopped,
        bond,
        streams: Streams::Unwatched,
        secrets,
        birth,
    };
    in_runtime(async {
        let mut client = Client::over(&supervisors, &Destination::New).await?;
        let launched = client.launch(request, None).await?;
        drop(lock); // the record says by now that the run goes on
        if !manner.quiet {
            launched.not_taken.iter().for_each(report::not_taken);
        }
        let LaunchedRun { run, backend, not_taken, .. } = &launched;
        if manner.stay == Attach::Leave {
            let object = json!({ "id": run, "state": RunState::Running, "backend": backend });
            return tell_id(manner, run, with_steps(object, not_taken)?);
        }
        let tell = !manner.quiet && !manner.json;
        if tell {
            report::eprintln(&format!(
                "{DIM}belljar {}{DIM:#} {BOLD}{backend}{BOLD:#}, attested; run {run}",
                run.tail()
            ));
        }
        let report = follow(home, &client, *run, tell).await.inspect_err(|_| {
            report::eprintln(&format!("{BOLD}hint:{BOLD:#}  belljar resume {run}"));
        })?;
        finish(manner, &report)
    })
}

/// Shows what comes until the run has ended. The first signal asks it to stop, a second one ends it.
async fn follow(
    home: &Home,
    client: &Client,
    run: RunId,
    tell: bool,
) -> Result<StopReport, Box<dyn std::error::Error>> {
    let printer = tell.then(|| {
        let home = home.clone();
        tokio::task::spawn_blocking(move || {
            // What cannot be printed is in the record.
            let _ = agent_follow::print(&home, &run, Until::TheEnd, Form::Words, None);
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
        let _ = tokio::time::timeout(PRINTED_WITHIN, printer).await; // a reader may take nothing
    }
    Ok(report)
}

fn tell_id(manner: &OutputMode, run: &RunId, object: serde_json::Value) -> CommandResult {
    if let Some(path) = &manner.result {
        write_result(path, &object)?;
    }
    if manner.json {
        report::json(&object)?;
    } else {
        report::out(&format!("{run}\n"));
    }
    Ok(0)
}

fn finish(manner: &OutputMode, report: &StopReport) -> CommandResult {
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
    if let Some(path) = &manner.result {
        write_result(path, &object)?;
    }
    if manner.json {
        report::json(&object)?;
        return Ok(code);
    }
    if let Some(detail) = &report.detail {
        report::eprintln(&format!("{WARN}error:{WARN:#} the run was ended: {detail}"));
    }
    if let Some(leak) = &report.leak {
        report::eprintln(&format!("{WARN}warning:{WARN:#} something of the run is left: {leak}"));
    }
    if !manner.quiet && std::io::stderr().is_terminal() {
        changes::tell_end_of(&report.run, report.workspace.as_ref());
    }
    Ok(code)
}
