//! `belljar stop`: ends runs, with everything in them, and waits for that.

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
    CommandResult, EXIT_SOMETHING_OFF, exit_code, in_runtime, open_home, reconcile_first, run_file,
};
use crate::cli::StopArgs;
use crate::report::{self, WARN};

/// What a supervisor needs besides the grace: to take everything apart and write it down.
const BESIDES_THE_GRACE: Duration = Duration::from_secs(10);
/// The settings' own default, for a record that cannot be read.
const USUAL_GRACE: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("run {run} is live, and its supervisor does not answer and could not be ended: {why}")]
    NotEnded { run: RunId, why: String },
}

pub(crate) fn run(args: &StopArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &StopArgs) -> CommandResult {
    let home = open_home()?;
    let found = args.runs.iter().map(|query| store::find(&home, query));
    let found = found.collect::<Result<Vec<RunInfo>, _>>()?;
    in_runtime(async {
        let mut stopping = JoinSet::new();
        for run in found {
            let (home, grace) = (home.clone(), args.timeout.map(Duration::from));
            stopping.spawn(async move { (run.id, stop(&home, &run, grace).await) });
        }
        let mut code = 0;
        while let Some(stopped) = stopping.join_next().await {
            let (run, done) = stopped?;
            match done {
                Ok(()) if args.quiet => {}
                Ok(()) => report::out(&format!("{run}\n")),
                Err(error) => {
                    report::failure(error.as_ref());
                    code = EXIT_SOMETHING_OFF;
                }
            }
        }
        Ok(code)
    })
}

/// One that is over already is as good.
pub(super) async fn stop(
    home: &Home,
    run: &RunInfo,
    grace: Option<Duration>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if !run.is_live() {
        return reconcile_first(home).map_err(|error| error.to_string().into());
    }
    let own_grace = || {
        let spec = run_file::read(home, &run.id).ok().map(|file| file.spec);
        spec.map_or(USUAL_GRACE, |spec| spec.limits.stop_timeout)
    };
    let within = grace.unwrap_or_else(own_grace) + BESIDES_THE_GRACE;
    match tokio::time::timeout(within, ask(home, &run.id, grace)).await {
        Ok(Ok(Some(report))) => {
            if let Some(leak) = report.leak {
                report::eprintln(&format!(
                    "{WARN}warning:{WARN:#} something of the run is left: {leak}"
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

/// Comes back when it is over: with its supervisor's word, or without.
async fn ask(
    home: &Home,
    run: &RunId,
    grace: Option<Duration>,
) -> Result<Option<StopReport>, Error> {
    while is_held(home, run) {
        let told = match Client::connect(home.path(), run).await {
            Ok(client) => client.stop(grace).await,
            Err(error) => Err(error),
        };
        match told {
            // It is about to open its socket, has closed it already, or is dying.
            Err(Error::Lost { .. }) => tokio::time::sleep(TRY_AGAIN).await,
            told => return told.map(Some),
        }
    }
    Ok(None)
}

fn is_held(home: &Home, run: &RunId) -> bool {
    matches!(store::life::of(home, run), Life::Live(_))
}

/// The sandbox ends with it. Whose socket it is, the kernel tells; asked again once the process is
/// pinned, so that its number cannot have come to mean another.
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
