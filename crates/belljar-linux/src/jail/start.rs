//! The launcher's part of a start: makes the processes, writes their uid maps, passes the descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_bind::identity::{BLOCK_SIZE, HostIdentity, init_ids};
use belljar_spec::{HostUid, Limits, Stdin, Terminal, Usage, User};
use belljar_sys::kernel_file::read_text;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use super::apply;
use super::bind::Bound;
use super::cgroup::{self, CgroupError, Entrance, Group};
use super::report::{Blame, Report};
use super::set_up::{SET_UP, SetUpStep};
use super::usage::{Count, WriteAccount};
use crate::sys::pod_namespaces::PodNamespaces;
use crate::sys::process::{
    Child, CloneFlags, Forked, clone_into, current_executable, exit_now, reap,
};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot make {what} for the sandbox")]
    Make {
        what: &'static str,
        #[source]
        error: Errno,
    },
    #[error("cannot make the run's user namespace")]
    Pod(#[source] Errno),
    #[error("cannot make the run's network namespace")]
    Network(#[source] Errno),
    #[error("cannot write {path}")]
    Map {
        path: String,
        #[source]
        error: std::io::Error,
    },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("the sandbox could not be set up: {0}")]
    SetUp(String),
    #[error("the run cannot be set up: {0}")]
    OfTheRun(String),
    #[error("the sandbox ended before it was set up")]
    Ended,
    #[error("the sandbox was set up without a listening socket for each of its ports")]
    Listeners,
    #[error("{start}, and its control group could not be removed")]
    AndCleanup {
        start: Box<StartError>,
        #[source]
        cleanup: CgroupError,
    },
}

impl StartError {
    fn of_report(why: String, blame: Blame) -> Self {
        match blame {
            Blame::Run => Self::OfTheRun(why),
            Blame::SetUp => Self::SetUp(why),
        }
    }
}

/// A sandbox in which PID 1 runs or is about to run. Nothing hostile runs in it yet.
#[derive(Debug)]
pub struct Sandbox {
    pub init: Child,
    pub channel: Option<OwnedFd>,
    /// Where the command's input goes; `None` with a terminal, or where it has none.
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Ports on the sandbox's loopback; only the launcher has these sockets.
    pub listeners: Vec<(u16, OwnedFd)>,
    report: OwnedFd,
    group: Option<Group>,
    identity: HostIdentity,
    count: Count,
    written: WriteAccount,
    life: Life,
}

/// Whether PID 1 can still be asked and signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Killed,
    Reaped,
}

/// What the new process takes along.
pub(crate) struct Ends {
    pub(crate) channel: OwnedFd,
    pub(crate) stdio: Option<StdioInside>,
    pub(crate) executable: OwnedFd,
    pub(crate) report: OwnedFd,
    /// Files of control groups, into which the process writes itself.
    pub(crate) groups: Vec<OwnedFd>,
}

/// The command's ends of its pipes. Without input it gets `/dev/null`, which is made inside: some
/// programs would wait on a pipe without a writer.
pub(crate) struct StdioInside {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Starts PID 1 in new namespaces, under the limits from its first instruction. Consumes what was bound; on failure
/// nothing is left.
pub fn start(bound: Bound) -> Result<Sandbox, StartError> {
    start_with(SET_UP, bound)
}

/// The tests leave out a step of the set-up.
pub(super) fn start_with(steps: &[SetUpStep], mut bound: Bound) -> Result<Sandbox, StartError> {
    let limits = bound.host.plan.limits_of_groups();
    let group = make_group(&limits, &bound.host).or_else(|error| match bound.namespaces.take() {
        // On cgroup v2 a group that holds processes hands no limits down. The launcher moves out of a delegated group
        // by itself; the process with the namespaces ends here, and is made again.
        Some(namespaces) => {
            drop(namespaces);
            make_group(&limits, &bound.host)
        }
        None => Err(error),
    });
    let Some(group) = group? else {
        return start_in(steps, bound, Entrance::Moved, None);
    };
    let directories = group.directories();
    let started = group
        .entrance()
        .map_err(StartError::from)
        .and_then(|entrance| start_in(steps, bound, entrance, Some(group)));
    started.map_err(|start| {
        let removed = directories.iter().try_for_each(|path| cgroup::remove_directory(path));
        match removed {
            Ok(()) => start,
            Err(cleanup) => StartError::AndCleanup { start: Box::new(start), cleanup },
        }
    })
}

fn make_group(limits: &Limits, bound: &belljar_bind::Bound) -> Result<Option<Group>, CgroupError> {
    let Limits { memory, millicpus, pids, .. } = limits;
    if (memory, millicpus, pids) == (&None, &None, &None) {
        return Ok(None);
    }
    let group = Group::make(&cgroup::detect(), &bound.run, limits)?;
    if let Some(group) = &group {
        group.mark(&bound.directory);
    }
    Ok(group)
}

fn start_in(
    steps: &[SetUpStep],
    mut bound: Bound,
    entrance: Entrance,
    group: Option<Group>,
) -> Result<Sandbox, StartError> {
    let make = |what, error| StartError::Make { what, error };
    let (channel, channel_inside) =
        socket_pair(SocketType::STREAM).map_err(|e| make("a channel", e))?;
    let (report, report_inside) =
        socket_pair(SocketType::SEQPACKET).map_err(|e| make("a report", e))?;
    let executable = current_executable().map_err(|error| {
        make("a copy of belljar", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })?;
    let pipes = Pipes::make(bound.host.plan.command.terminal, bound.host.plan.command.stdin)
        .map_err(|e| make("pipes", e))?;
    let Pipes { stdin, stdout, stderr, inside } = pipes;
    let (groups, directory) = match entrance {
        Entrance::Files(files) => (files, None),
        Entrance::Directory(directory) => (Vec::new(), Some(directory)),
        Entrance::Moved => (Vec::new(), None),
    };
    let namespaces = pod_namespaces(&mut bound)?;
    let into = directory.as_ref().map(AsFd::as_fd);
    let pod = match clone_into(CloneFlags::default(), into).map_err(StartError::Pod)? {
        Forked::Child => {
            // The launcher's ends: with a copy of them here, its death would never be seen.
            drop((channel, report, stdin, stdout, stderr));
            let (channel, report, stdio) = (channel_inside, report_inside, inside);
            let ends = Ends { channel, stdio, executable, report, groups };
            run_pod(steps, &bound, ends, &namespaces)
        }
        Forked::Parent(child) => child,
    };
    drop((channel_inside, report_inside, inside, executable, groups, directory));
    let introduced = introduce(report.as_fd());
    end(&pod); // it has sent its last report, or failed to
    drop(namespaces); // the sandbox is in them, or there is none
    let (init, listeners) = introduced?;
    if listeners.len() != bound.host.plan.listen.len() {
        end(&init);
        return Err(StartError::Listeners);
    }
    let listeners = bound.host.plan.listen.iter().copied().zip(listeners).collect();
    let written = WriteAccount::open(init.pid);
    let belljar_bind::Bound { identity, .. } = bound.host;
    Ok(Sandbox {
        init,
        channel: Some(channel),
        stdin,
        stdout,
        stderr,
        listeners,
        report,
        group,
        identity,
        count: Count::default(),
        written,
        life: Life::Running,
    })
}

fn run_pod(steps: &[SetUpStep], bound: &Bound, ends: Ends, namespaces: &PodNamespaces) -> ! {
    let Ok(report) = ends.report.try_clone() else { exit_now(125) };
    match apply::pod(steps, bound, ends, namespaces) {
        Ok(()) => exit_now(0),
        Err(error) => {
            error.report().send(report.as_fd());
            exit_now(125)
        }
    }
}

/// The run's namespaces, with their maps: those that were begun when the run was bound.
fn pod_namespaces(bound: &mut Bound) -> Result<PodNamespaces, StartError> {
    let namespaces = match bound.namespaces.take() {
        Some(namespaces) => namespaces,
        None => PodNamespaces::begin().map_err(StartError::Pod)?,
    };
    let pid = namespaces.pid.as_raw_nonzero();
    let write = |file: &str, text: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, text).map_err(|error| StartError::Map { path, error })
    };
    let (uids, gids) = pod_maps(bound.host.plan.identity.inside, &bound.host.identity);
    if bound.host.plan.identity.host == HostUid::Caller {
        write("setgroups", "deny")?; // else an ordinary user may not write a group map
    }
    write("uid_map", &uids)?;
    write("gid_map", &gids)?;
    namespaces.wait().map_err(StartError::Network)?;
    Ok(namespaces)
}

/// The pod's report is the sandbox's first process.
fn introduce(report: BorrowedFd<'_>) -> Result<(Child, Vec<OwnedFd>), StartError> {
    match Report::receive(report)? {
        Report::Failed { why, blame } => Err(StartError::of_report(why, blame)),
        Report::Sandbox { pid, listeners } => {
            let pid = Pid::from_raw(pid).ok_or(StartError::Ended)?;
            // It is our child, so the pid cannot be reused before we reap it.
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| StartError::Ended)?;
            Ok((Child { pid, pidfd }, listeners))
        }
    }
}

/// The pod's ids, in terms of the host's.
fn pod_maps(user: User, identity: &HostIdentity) -> (String, String) {
    if let Some(first) = identity.block {
        let map = format!("0 {first} {BLOCK_SIZE}\n");
        return (map.clone(), map);
    }
    let init = identity.init.map(|host| (init_ids(user), host));
    let command = identity.command;
    let mut uids = format!("{} {} 1\n", user.uid, command.uid);
    let mut gids = format!("{} {} 1\n", user.gid, command.gid);
    if let Some((inside, host)) = init {
        uids = format!("{} {} 1\n{uids}", inside.uid, host.uid);
        gids = format!("{} {} 1\n{gids}", inside.gid, host.gid);
    }
    (uids, gids)
}

/// The sandbox's ids, in terms of the pod's: the same numbers.
pub(crate) fn inner_maps(user: User, identity: &HostIdentity) -> (String, String) {
    if identity.block.is_some() {
        let map = format!("0 0 {BLOCK_SIZE}\n");
        return (map.clone(), map);
    }
    let init = identity.init.map(|_| init_ids(user));
    let mut uids = format!("{0} {0} 1\n", user.uid);
    let mut gids = format!("{0} {0} 1\n", user.gid);
    if let Some(inside) = init {
        uids = format!("{0} {0} 1\n{uids}", inside.uid);
        gids = format!("{0} {0} 1\n{gids}", inside.gid);
    }
    (uids, gids)
}

impl Sandbox {
    /// Why the sandbox ended before its hello, if it reported that.
    pub fn set_up_failure(&self) -> StartError {
        match Report::receive(self.report.as_fd()) {
            Ok(Report::Failed { why, blame }) => StartError::of_report(why, blame),
            _ => StartError::Ended,
        }
    }

    /// Where the group's manager has to be asked: it takes PID 1 in. Everywhere else PID 1 was created in its group.
    pub fn make_limits(&mut self) -> Result<(), CgroupError> {
        let init = self.init.pid;
        self.group.as_mut().map_or(Ok(()), |group| group.begin(init))
    }

    /// Checks that PID 1 and the process that waits at the gate, and nothing else, are under the limits. Before the
    /// gate opens there are no other processes, and none can be made.
    pub fn join_limits(&self) -> Result<(), CgroupError> {
        let Some(group) = &self.group else { return Ok(()) };
        let init = self.init.pid;
        let all: Vec<Pid> = [init].into_iter().chain(children_of(init)).collect();
        group.holds_exactly(&all)
    }

    /// Readable once PID 1 is gone, and with it everything inside.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.init.pidfd.as_fd()
    }

    /// Nothing runs inside but PID 1.
    pub fn is_quiet(&self) -> bool {
        children_of(self.init.pid).is_empty()
    }

    pub fn command_uid(&self) -> u32 {
        self.identity.command.uid
    }

    pub fn oom_kills(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::oom_kills)
    }

    /// Takes note of what only the present shows. Called now and then, and once at the end.
    pub fn sample(&mut self) {
        if self.life == Life::Reaped {
            return;
        }
        self.count.saw_written(self.written.bytes());
        if let Some(group) = &self.group {
            self.count.saw_processes(group.processes());
        }
    }

    /// So far; all of it once PID 1 has been reaped.
    pub fn usage(&self, usage: &mut Usage) {
        if let (Life::Running | Life::Killed, Some(group)) = (self.life, &self.group) {
            group.usage(usage);
        }
        self.count.fill(usage);
    }

    /// Ends everything inside: when PID 1 goes, the kernel takes the whole pid namespace with it.
    pub fn kill(&mut self) {
        if self.life == Life::Running {
            self.sample(); // the last chance for what only a living process shows
            let _ = pidfd_send_signal(&self.init.pidfd, Signal::KILL); // gone already is as good
            self.life = Life::Killed;
        }
    }

    /// Waits for PID 1's end and takes stock; the groups stay. May be called again.
    pub fn reap(&mut self) {
        if self.life == Life::Reaped {
            return;
        }
        self.wait_for_end();
        // A process that ended can be asked until it is reaped: then it has counted all that it reaped.
        self.sample();
        let used = reap(self.init.pid).ok();
        let mut counted = Usage::default();
        if let Some(group) = &self.group {
            group.usage(&mut counted);
        }
        self.count.is_final(counted, used);
        self.life = Life::Reaped;
    }

    fn wait_for_end(&self) {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(self.init.pid), ended) {}
    }

    /// Kills, reaps, and takes the control groups away. May be called again.
    pub fn destroy(&mut self) -> Result<(), CgroupError> {
        self.kill();
        self.reap();
        self.group.as_ref().map_or(Ok(()), Group::remove)
    }
}

/// The children of a process. Without the kernel's list, by asking every process for its parent.
fn children_of(parent: Pid) -> Vec<Pid> {
    let number = parent.as_raw_nonzero();
    if let Ok(list) = read_text(format!("/proc/{number}/task/{number}/children")) {
        return list
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect();
    }
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent_line = format!("PPid:\t{number}");
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            read_text(format!("/proc/{pid}/status"))
                .is_ok_and(|status| status.lines().any(|line| line == parent_line))
        })
        .filter_map(Pid::from_raw)
        .collect()
}

fn end(child: &Child) {
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = reap(child.pid); // an error means that it was reaped before
}

fn socket_pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

/// The command's streams. Pipes, because a file could be truncated from inside and a terminal typed
/// into.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    inside: Option<StdioInside>,
}

impl Pipes {
    fn make(terminal: Terminal, stdin: Stdin) -> Result<Self, Errno> {
        if terminal == Terminal::Pty {
            return Ok(Self { stdin: None, stdout: None, stderr: None, inside: None });
        }
        let (out_read, out_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (err_read, err_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdin_inside, stdin) = match stdin {
            Stdin::Null => (None, None),
            Stdin::Passed => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                (Some(read), Some(write))
            }
        };
        Ok(Self {
            stdin,
            stdout: Some(out_read),
            stderr: Some(err_read),
            inside: Some(StdioInside { stdin: stdin_inside, stdout: out_write, stderr: err_write }),
        })
    }
}
