//! Runs a project's tests without network and without changing the project, and prints a report as JSON.
//!
//! `test_runner DIRECTORY COMMAND…`, such as `test_runner . make test`. The exit code is 0 if the tests passed, 1 if
//! they failed, 2 if they could not be run.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use belljar::spec::{MountMode, StopReason};
use belljar::{RunOutput, Sandbox};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(900);
/// Bytes of each stream in the report.
const OUTPUT_LIMIT: usize = 16 << 10;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let directory = arguments.next().map(PathBuf::from);
    let command: Vec<_> = arguments.collect();
    let report = match directory {
        Some(directory) if !command.is_empty() => test(directory, command).await,
        _ => Err("usage: test_runner DIRECTORY COMMAND...".into()),
    };
    let (report, code) = match report {
        Ok(report) if report["passed"] == true => (report, 0),
        Ok(report) => (report, 1),
        Err(error) => (json!({ "error": error.to_string() }), 2),
    };
    match writeln!(std::io::stdout(), "{report:#}") {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::from(2),
    }
}

async fn test(
    directory: PathBuf,
    command: Vec<std::ffi::OsString>,
) -> Result<Value, Box<dyn std::error::Error>> {
    // The tests may write whatever they like: it goes to an overlay, and no host can be reached.
    let settings = Sandbox::builder()
        .no_config()
        .workspace(directory, MountMode::Overlay)
        .timeout(TIMEOUT)
        .limit_output(OUTPUT_LIMIT);
    let done = match settings.run(command).await {
        Ok(done) => done,
        Err(belljar::Error::Deadline { output }) => {
            return Ok(json!({
                "passed": false,
                "timed_out": true,
                "stdout": output.stdout_text(),
                "stderr": output.stderr_text(),
            }));
        }
        Err(error) => return Err(error.into()),
    };
    let report = report(&done).await?;
    // The record stays, for `belljar logs`; what the tests wrote does not.
    done.record().discard().await?;
    Ok(report)
}

async fn report(done: &RunOutput) -> Result<Value, belljar::Error> {
    let diff = done.record().diff().await?;
    let written: Vec<String> = diff.changes().map(|change| change.path.to_string()).collect();
    let ended_by_itself = done.report.reason == StopReason::Exited;
    Ok(json!({
        "run": done.run,
        "passed": done.output.success() && ended_by_itself,
        "exit": done.output.exit.process_code(),
        "wall_ms": done.report.usage.wall_ms,
        "stdout": done.output.stdout_text(),
        "stderr": done.output.stderr_text(),
        "written": written,
    }))
}
