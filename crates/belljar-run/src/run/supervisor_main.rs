//! `belljar __supervise`: the supervisor of one run, in a process that outlives the one that started it.
//!
//! One process for each run, in its own session, single-threaded until the command is released. Its standard input is
//! the connection over which it receives the run to start.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use belljar_spec::wire::control::{
    ControlError, FromSupervisor, LaunchRefusal, LaunchRequest, RefusalKind, ToSupervisor,
};
use belljar_spec::{BackendName, Posture, RunId};
use rustix::io::Errno;
use rustix::process::{Pid, getppid, setpgid};

use super::launch::launch_for;
use super::select_backend::prepare_chosen;
use super::{Fetch, Observer, Unwatched};
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
    Some(match leave_the_caller().and_then(Connection::new) {
        Ok(connection) => serve(connection),
        Err(_) => 125, // there is no connection to report it on
    })
}

/// A session of its own: a hang-up of the caller's terminal is none of ours. The connection leaves
/// descriptor 0, so that nothing takes it for input.
fn leave_the_caller() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    // Whatever the program that started us had blocked, ignored or left open is none of ours.
    belljar_sys::signal::reset_all()?;
    belljar_sys::signal::ignore_broken_pipe();
    belljar_sys::close_from(3)?;
    // Whoever leads a group cannot begin a session, and some start this process as the leader of one.
    if let Some(group) = group_of_parent() {
        let _ = setpgid(None, Some(group));
    }
    let _ = rustix::process::setsid(); // fails only where it is one already
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::chdir("/")?;
    let connection = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(connection)
}

/// `None` where it lies in another pid namespace, and has no number here. Read from /proc: rustix takes the kernel's
/// answer 0 for impossible.
fn group_of_parent() -> Option<Pid> {
    let parent = getppid()?.as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).ok()?;
    // The name before it can hold anything: state, parent and group follow its last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_whitespace().nth(2)?.parse().ok()?)
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
    let LaunchRequest { home, spec, keep, bond, streams, secrets, chosen, resumed_from } = request;
    let prepared = Home::open_at(home.as_path().to_owned())
        .map_err(|error| refusal(RefusalKind::Io, &error))
        .and_then(|home| {
            let prepared = prepare_chosen(chosen, spec, keep, Fetch::AsTheSpecSays(&Unwatched))
                .map_err(|error| error.refusal())?;
            Ok((home, prepared.with_secrets(secrets).resuming(resumed_from)))
        });
    let (home, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(refusal) => return refuse(connection, refusal),
    };
    let caller = Caller::There { connection: Box::new(connection), streams, bond };
    match launch_for(&home, prepared, caller, &mut Quiet) {
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
