//! The run's own command as a task: what its streams are depends on who started the run.

use belljar_backend::{CommandStreams, Started};
use belljar_spec::wire::control::{Bond, Streams as Wanted, TaskStreams};
use belljar_spec::{OutputStream, Plan, Stdin, Terminal};

use super::Caller;
use super::capture::HeadAndTail;
use super::channel::{MAIN_EXEC, OWN, TERMINAL};
use super::client::{ClientId, Clients};
use super::inlet::{Inlet, InputSink, InputSource};
use super::outlet::{Outlet, OutputSink, OutputSource};
use super::task::{Follower, Task};
use crate::run::{Output, Streams};

/// The task, if the run has a command, and the connection whose end is the run's.
pub(super) fn own_task(
    plan: &Plan,
    started: &mut Started,
    caller: Caller,
    clients: &mut Clients,
) -> (Option<Task>, Option<ClientId>) {
    let (ends, bond, bonded_to) = match caller {
        Caller::Here(streams) => {
            (Ends::here(streams, plan.limits.output), Bond::EndsWithConnection, None)
        }
        Caller::Served => (Ends::there(None, Wanted::Unwatched), Bond::LivesOn, None),
        Caller::There { connection, streams, bond } => {
            let client = clients.add(*connection);
            let bonded = client.filter(|_| bond == Bond::EndsWithConnection);
            (Ends::there(client, streams), bond, bonded)
        }
    };
    if plan.command.argv.is_empty() {
        return (None, bonded_to);
    }
    (Some(task(plan, started, ends, bond)), bonded_to)
}

/// The other ends of the command's streams.
struct Ends {
    stdout: OutputSink,
    stderr: OutputSink,
    input: InputSource,
    follower: Option<Follower>,
}

impl Ends {
    fn here(streams: Streams, keep: u64) -> Self {
        let (stdout, stderr) = match streams.output {
            Output::Passed { stdout, stderr } => (OutputSink::fd(stdout), OutputSink::fd(stderr)),
            Output::Captured => {
                (OutputSink::Kept(HeadAndTail::new(keep)), OutputSink::Kept(HeadAndTail::new(keep)))
            }
        };
        let input = streams.stdin.map_or(InputSource::Ended, InputSource::Fd);
        Self { stdout, stderr, input, follower: None }
    }

    fn there(client: Option<ClientId>, streams: Wanted) -> Self {
        let without_client = Self {
            stdout: OutputSink::Nowhere,
            stderr: OutputSink::Nowhere,
            input: InputSource::Detached,
            follower: None,
        };
        let (Some(client), Some(numbers)) = (client, TaskStreams::of(MAIN_EXEC)) else {
            return without_client;
        };
        let to = |stream| OutputSink::Client { client, stream };
        let follower = Some(Follower { client, task: MAIN_EXEC });
        let typed = InputSource::Client { client, stream: numbers.stdin };
        match streams {
            Wanted::Unwatched => without_client,
            Wanted::Terminal(_) => Self {
                stdout: to(numbers.stdin),
                stderr: OutputSink::Nowhere,
                input: typed,
                follower,
            },
            Wanted::Output => Self {
                stdout: to(numbers.stdout),
                stderr: to(numbers.stderr),
                input: InputSource::Ended,
                follower,
            },
            Wanted::InputAndOutput => Self {
                stdout: to(numbers.stdout),
                stderr: to(numbers.stderr),
                input: typed,
                follower,
            },
        }
    }
}

fn task(plan: &Plan, started: &mut Started, ends: Ends, bond: Bond) -> Task {
    let Ends { stdout, stderr, input, follower } = ends;
    let pipe =
        |fd: Option<std::os::fd::OwnedFd>| fd.map_or(OutputSource::Ended, OutputSource::Pipe);
    let (from_stdout, from_stderr, taker) = match (plan.command.terminal, started.streams) {
        (Terminal::Pty, _) => (
            OutputSource::Channel(TERMINAL),
            OutputSource::Ended,
            Some(InputSink::Channel(TERMINAL)),
        ),
        (Terminal::None, CommandStreams::OverChannel) => (
            OutputSource::Channel(OWN.stdout),
            OutputSource::Channel(OWN.stderr),
            (plan.command.stdin == Stdin::Passed).then_some(InputSink::Channel(OWN.stdin)),
        ),
        (Terminal::None, CommandStreams::Pipes) => (
            pipe(started.stdout.take()),
            pipe(started.stderr.take()),
            started.stdin.take().map(InputSink::Pipe),
        ),
    };
    let stdout = Outlet::new(OutputStream::Stdout, from_stdout, stdout);
    let stderr = Outlet::new(OutputStream::Stderr, from_stderr, stderr);
    let mut task = Task::new(MAIN_EXEC, stdout, stderr);
    task.input = taker.map(|taker| Inlet::new(input, taker));
    (task.follower, task.bond) = (follower, bond);
    task
}
