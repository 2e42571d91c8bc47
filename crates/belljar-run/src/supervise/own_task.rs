//! The run's own command as a task: what its streams are depends on who started the run.

use belljar_backend::{CommandStreams, Started};
use belljar_spec::wire::control::{Bond, Streams as Wanted, TaskStreams};
use belljar_spec::{OutputStream, Plan, Stdin, Terminal};

use super::Caller;
use super::capture::HeadAndTail;
use super::channel::{COMMAND, OWN, TERMINAL};
use super::client::{ClientId, Clients};
use super::inlet::{Giver, Inlet, Taker};
use super::outlet::{From, Outlet, To};
use super::task::{Carries, Follower, Phase, Task};
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
    stdout: To,
    stderr: To,
    input: Giver,
    follower: Option<Follower>,
}

impl Ends {
    fn here(streams: Streams, keep: u64) -> Self {
        let (stdout, stderr) = match streams.output {
            Output::Passed { stdout, stderr } => (To::fd(stdout), To::fd(stderr)),
            Output::Captured => {
                (To::Kept(HeadAndTail::new(keep)), To::Kept(HeadAndTail::new(keep)))
            }
        };
        let input = streams.stdin.map_or(Giver::Ended, Giver::Fd);
        Self { stdout, stderr, input, follower: None }
    }

    fn there(client: Option<ClientId>, streams: Wanted) -> Self {
        let nobody =
            Self { stdout: To::Nowhere, stderr: To::Nowhere, input: Giver::Nobody, follower: None };
        let (Some(client), Some(numbers)) = (client, TaskStreams::of(COMMAND)) else {
            return nobody;
        };
        let to = |stream| To::Client { client, stream };
        let follower = Some(Follower { client, task: COMMAND });
        let typed = Giver::Client { client, stream: numbers.stdin };
        match streams {
            Wanted::Unwatched => nobody,
            Wanted::Terminal(_) => {
                Self { stdout: to(numbers.stdin), stderr: To::Nowhere, input: typed, follower }
            }
            Wanted::Output => Self {
                stdout: to(numbers.stdout),
                stderr: to(numbers.stderr),
                input: Giver::Ended,
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
    let pipe = |fd: Option<std::os::fd::OwnedFd>| fd.map_or(From::Ended, From::Pipe);
    let (from_stdout, from_stderr, taker) = match (plan.command.terminal, started.streams) {
        (Terminal::Pty, _) => {
            (From::Channel(TERMINAL), From::Ended, Some(Taker::Channel(TERMINAL)))
        }
        (Terminal::None, CommandStreams::OverChannel) => (
            From::Channel(OWN.stdout),
            From::Channel(OWN.stderr),
            (plan.command.stdin == Stdin::Passed).then_some(Taker::Channel(OWN.stdin)),
        ),
        (Terminal::None, CommandStreams::Pipes) => (
            pipe(started.stdout.take()),
            pipe(started.stderr.take()),
            started.stdin.take().map(Taker::Pipe),
        ),
    };
    Task {
        exec: COMMAND,
        carries: Carries::Output,
        stdout: Outlet::new(OutputStream::Stdout, from_stdout, stdout),
        stderr: Outlet::new(OutputStream::Stderr, from_stderr, stderr),
        input: taker.map(|taker| Inlet::new(input, taker)),
        follower,
        bond,
        phase: Phase::Running,
        unrecorded: None,
        deadline: None,
        give_up_at: None,
        ended: None,
        ear: None,
    }
}
