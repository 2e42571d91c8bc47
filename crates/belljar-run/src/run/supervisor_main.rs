//! `belljar __supervise`: the supervisor of one run, in a process that outlives the one that started it.
//!
//! One process for each run, in its own session, single-threaded until the command is released. Its standard input is
//! the connection over which it receives the run to start.

use std::ffi::OsString;
use std::time::Duration;

use belljar_spec::wire::control::{
    ControlError, FromSupervisor, LaunchRefusal, LaunchRequest, RefusalKind, ToSupervisor,
};
use belljar_spec::{BackendName, Posture, RunId};

use super::launch::{Close, launch_for};
use super::select_backend::prepare_chosen;
use super::{Fetch, Images, Observer, Unwatched};
use crate::detach::detach_from_caller;
use crate::supervise::{Caller, Connection};
use belljar_record::home::Home;

/// From the start of this process to the first request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The second thing that `main` does: a supervisor parses no arguments.
///
/// `Some` is the code to exit with.
pub fn run_supervisor_if_requested(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    if args.next()? != "__supervise" || args.next().is_some() {
        return None;
    }
    Some(match detach_from_caller().and_then(Connection::new) {
        Ok(connection) => serve(connection),
        Err(_) => 125, // there is no connection to report it on
    })
}

fn serve(mut connection: Connection) -> i32 {
    let request = match connection.next_request(REQUEST_TIMEOUT) {
        Some(ToSupervisor::Launch(request)) => *request,
        Some(_) => {
            let why = "there is no run yet".to_owned();
            connection.send(&FromSupervisor::Refused(ControlError::OutOfTurn { why }));
            connection.finish(Duration::from_secs(1));
            return 125;
        }
        None => return 125,
    };
    let LaunchRequest { home, spec, keep, bond, streams, secrets, chosen, resumed_from, ttl_ms } =
        request;
    let ttl = ttl_ms.map(Duration::from_millis);
    let prepared = Home::open_at(home.as_path().to_owned())
        .map_err(|error| refusal(RefusalKind::Io, &error))
        .and_then(|home| {
            let fetch = Fetch::AsTheSpecSays(&Unwatched);
            let images = Images { store: Some(home.images()), fetch };
            let prepared =
                prepare_chosen(chosen, spec, keep, images).map_err(|error| error.refusal())?;
            Ok((home, prepared.with_secrets(secrets).resuming(resumed_from).living(ttl)))
        });
    let (home, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(refusal) => return refuse(connection, refusal),
    };
    let caller = Caller::There { connection: Box::new(connection), streams, bond };
    match launch_for(&home, prepared, caller, Close::Here, &mut Quiet) {
        Ok(outcome) => outcome.exit.process_code(),
        Err(_) => 125,
    }
}

fn refuse(mut connection: Connection, refusal: LaunchRefusal) -> i32 {
    connection.send(&FromSupervisor::LaunchRefused(Box::new(refusal)));
    connection.finish(Duration::from_secs(2));
    125
}

fn refusal(kind: RefusalKind, error: &dyn std::error::Error) -> LaunchRefusal {
    let mut causes = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    LaunchRefusal { kind, causes, missing: Vec::new(), fix: None }
}

struct Quiet;

impl Observer for Quiet {
    fn started(&mut self, _: &RunId, _: BackendName, _: &Posture) {}
}
