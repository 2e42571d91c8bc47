//! The line on stderr that says why belljar ended a run: the exit code alone does not.

use std::time::Duration;

use belljar::record::Outcome;
use belljar::spec::wire::control::StopReport;
use belljar::spec::{HumanDuration, Limits, Size, StopReason};

use super::wrap::one_line;

const ON_REQUEST: &str = "stopped on request (Ctrl-C, a signal, or belljar stop)";
/// Columns of a reason.
const MAX_WHY: usize = 400;

/// For a command that belljar ended.
pub(super) fn of_command(outcome: &Outcome, limits: &Limits) -> Option<String> {
    match outcome.reason {
        StopReason::Stopped => Some(ON_REQUEST.to_owned()),
        reason => reached_limit(reason, limits),
    }
}

/// For an agent's run that did not succeed. An agent that ends by itself needs no line, nor does an error with its own.
pub(super) fn of_agent(report: &StopReport, limits: &Limits) -> Option<String> {
    let why = report.agent.as_ref().map(|agent| agent.why.trim()).filter(|why| !why.is_empty());
    let why = why.map(|why| format!(": {}", one_line(why, MAX_WHY))).unwrap_or_default();
    let is_quiet = report.exit.process_code() == 0
        || report.reason == StopReason::Exited
        || report.detail.is_some();
    match report.reason {
        _ if is_quiet => None,
        StopReason::Stopped => Some(format!("{ON_REQUEST}{why}")),
        // A command's silence is one of its output, an agent's one of its events.
        StopReason::Idle => Some(format!("ended: idle{why}")),
        StopReason::Oom => reached_limit(StopReason::Oom, limits),
        reason => Some(match reached_limit(reason, limits) {
            Some(line) => format!("{line}{why}"),
            None => format!("ended: {}{why}", reason.name()),
        }),
    }
}

fn reached_limit(reason: StopReason, limits: &Limits) -> Option<String> {
    let span =
        |span: Option<Duration>| span.map(|span| format!(" of {}", HumanDuration::from(span)));
    let size = |size: Option<u64>| size.map(|size| format!(" of {}", Size(size)));
    Some(match reason {
        StopReason::Deadline => {
            format!(
                "stopped at the time limit{} (--timeout)",
                span(limits.time).unwrap_or_default()
            )
        }
        StopReason::Idle => {
            let idle = limits.idle.map(|idle| format!(" for {}", HumanDuration::from(idle)));
            format!("stopped because there was no output{} (--idle)", idle.unwrap_or_default())
        }
        StopReason::Oom => {
            format!(
                "killed at the memory limit{} (--memory)",
                size(limits.memory).unwrap_or_default()
            )
        }
        StopReason::Limit => {
            format!("stopped at the disk limit{} (--disk)", size(limits.disk).unwrap_or_default())
        }
        _ => return None,
    })
}
