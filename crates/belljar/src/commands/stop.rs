//! `belljar stop`: stops runs and waits until they have ended.

use std::time::Duration;

use belljar::home::Home;
use belljar::spec::RunId;
use belljar::spec::wire::control::StopReport;
use belljar::store::{self, Life, RunInfo};
use belljar::{Client, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::task::JoinSet;

use super::{
    CommandResult, EXIT_INCOMPLETE, ended_run, exit_code_json, failed_run, in_runtime, named,
    open_home, reconcile_first, run_file,
};
use crate::cli::StopArgs;
use crate::report::{self, WARN};

/// What a supervisor needs after the grace period, to remove the sandbox and close the record.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The default of the settings, for a run whose record cannot be read.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error(
        "run {run} is alive, but its supervisor does not respond and could not be killed: {why}"
    )]
    NotEnded { run: RunId, why: String },
}

pub(crate) fn run(args: &StopArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &StopArgs) -> CommandResult {
    let home = open_home()?;
    let found = args.runs.iter().map(|query| Ok((query.clone(), store::find(&home, query)?)));
    let found = found.collect::<Result<Vec<(String, RunInfo)>, store::FindError>>()?;
    in_runtime(async {
        let mut stopping = JoinSet::new();
        for (query, run) in found {
            let (home, grace) = (home.clone(), args.timeout.map(Duration::from));
            stopping.spawn(async move {
                let stopped = stop(&home, &run, grace).await;
                (query, run, stopped)
            });
        }
        let (mut code, mut objects) = (0, Vec::new());
        while let Some(stopped) = stopping.join_next().await {
            let (query, run, done) = stopped?;
            match done {
                Ok(()) if args.json => {
                    objects.push(ended_run(&query, &store::find(&home, run.id.as_str())?));
                }
                Ok(()) if args.quiet => report::out(&format!("{}\n", run.id)),
                Ok(()) if run.is_live() => report::out(&format!("{} stopped\n", named(&run))),
                Ok(()) => report::out(&format!("{} had already ended\n", named(&run))),
                Err(error) => {
                    report::failure(error.as_ref());
                    objects.push(failed_run(&query, error.as_ref()));
                    code = EXIT_INCOMPLETE;
                }
            }
        }
        if args.json {
            report::json(&objects)?;
        }
        Ok(code)
    })
}

/// Stops one run; a run that has ended already is no error.
pub(super) async fn stop(
    home: &Home,
    run: &RunInfo,
    grace: Option<Duration>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if !run.is_live() {
        return reconcile_first(home).map_err(|error| error.to_string().into());
    }
    let run_grace = || {
        let spec = run_file::read(home, &run.id).ok().map(|file| file.spec);
        spec.map_or(DEFAULT_GRACE, |spec| spec.limits.stop_timeout)
    };
    let timeout = grace.unwrap_or_else(run_grace) + SHUTDOWN_TIMEOUT;
    match tokio::time::timeout(timeout, request_stop(home, &run.id, grace)).await {
        Ok(Ok(Some(report))) => {
            if let Some(leak) = report.leak {
                report::eprintln(&format!(
                    "{WARN}warning:{WARN:#} the run left something behind: {leak}"
                ));
            }
            return Ok(());
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => kill_supervisor(home, &run.id)?,
    }
    reconcile_first(home).map_err(|error| error.to_string().into())
}

/// Returns when the run has ended, with its supervisor's report if there is one.
async fn request_stop(
    home: &Home,
    run: &RunId,
    grace: Option<Duration>,
) -> Result<Option<StopReport>, Error> {
    while is_live(home, run) {
        let response = match Client::connect(home.path(), run).await {
            Ok(client) => client.stop(grace).await,
            Err(error) => Err(error),
        };
        match response {
            // The supervisor has not opened its socket yet, has closed it already, or is dying.
            Err(Error::Lost { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
            response => return response.map(Some),
        }
    }
    Ok(None)
}

fn is_live(home: &Home, run: &RunId) -> bool {
    matches!(store::life::of(home, run), Life::Live(_))
}

/// Kills the supervisor, and with it the sandbox. The kernel names the process behind the socket; checked
/// again once the process is pinned, so that a reused pid cannot be hit.
fn kill_supervisor(home: &Home, run: &RunId) -> Result<(), StopError> {
    let failed = |why: String| StopError::NotEnded { run: *run, why };
    let listener = || {
        let socket = belljar::run::connect(&home.socket_path(run))?;
        rustix::net::sockopt::socket_peercred(&socket)
    };
    let first = listener().map_err(|errno| failed(errno.to_string()))?;
    let pinned =
        pidfd_open(first.pid, PidfdFlags::empty()).map_err(|errno| failed(errno.to_string()))?;
    let second = listener().map_err(|errno| failed(errno.to_string()))?;
    if second.pid != first.pid {
        return Err(failed("another process answers for it".to_owned()));
    }
    pidfd_send_signal(&pinned, Signal::KILL).map_err(|errno| failed(errno.to_string()))?;
    let within = Timespec { tv_sec: 10, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&pinned, PollFlags::IN)], Some(&within)) {
        Ok(1..) => Ok(()),
        _ => Err(failed("it was killed and is still there".to_owned())),
    }
}
