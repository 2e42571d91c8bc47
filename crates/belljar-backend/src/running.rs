//! A sandbox that was started: its channel, its streams, and what a supervisor can do with it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_spec::{ExecFailure, ExitStatus, SentTree, Usage};

use crate::error::{DestroyError, StartError};

/// The channel to PID 1.
#[derive(Debug)]
pub struct InitChannel {
    pub fd: OwnedFd,
    pub wrapping: Wrapping,
    /// PID 1 ends everything when no frame came for so long. `None` where the kernel reports the launcher's end.
    pub lease: Option<Duration>,
    pub link: Link,
}

/// What the end of the descriptor means.
#[derive(Debug)]
pub enum Link {
    /// PID 1 is gone, or ends now.
    Lasting,
    /// Perhaps only the connection is gone. Until the lease ends, another one may take its place.
    Breakable(Box<dyn LinkOpener>),
}

/// Connects to the same PID 1 once more.
pub trait LinkOpener: std::fmt::Debug + Send {
    /// Returns within about a second. The caller checks who is at the other end.
    fn open(&mut self) -> std::io::Result<OwnedFd>;
}

/// What an engine does to the bytes that come from PID 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    None,
    /// Packets with a header of eight bytes, which distinguish PID 1's two output streams.
    EnginePackets,
}

/// Where the run's main command has its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStreams {
    /// Pipes of the launcher's, of which this has the other ends.
    Pipes,
    /// Streams of the channel.
    OverChannel,
}

/// A boundary with PID 1 behind it.
#[derive(Debug)]
pub struct Started {
    /// Nothing where there is no boundary and so no PID 1.
    pub channel: Option<InitChannel>,
    pub streams: CommandStreams,
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Trees that the supervisor sends over the channel before the command starts.
    pub sent: Vec<SentTree>,
    /// A listening socket in the sandbox for each of the plan's ports; none where PID 1 has to listen.
    pub listeners: Vec<(u16, OwnedFd)>,
    /// PID 1's number on this host, where it has one.
    pub init_pid: Option<i32>,
    /// The uid that the command must have on this host.
    pub command_uid: Option<u32>,
    pub sandbox: Box<dyn RunningSandbox>,
}

/// What a supervisor does with a sandbox, whatever made it.
pub trait RunningSandbox: std::fmt::Debug {
    /// Ends everything inside at once.
    fn kill(&mut self);

    /// Waits until everything inside has ended and takes the final measurements; what was made on the host
    /// stays. After a kill, or when the channel closed.
    fn reap(&mut self);

    /// Kills what is left, reaps it, and removes what was made for it on the host.
    fn destroy(&mut self) -> Result<(), DestroyError>;

    /// Records what only the present shows: about once a second, and at the end.
    fn sample(&mut self) {}

    /// Puts PID 1 under the limits, where it was not created under them.
    fn make_limits(&mut self) -> Result<(), StartError> {
        Ok(())
    }

    /// Sees to it that everything inside is under the limits; called while the command waits at the gate.
    fn join_limits(&mut self) -> Result<(), StartError> {
        Ok(())
    }

    /// Why PID 1 never sent its hello.
    fn set_up_failure(&self) -> StartError;

    /// Readable once everything inside is gone. `None` where this is not known.
    fn end(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nothing runs inside but PID 1.
    fn is_quiet(&self) -> bool {
        false
    }

    /// How often the kernel ended something inside for want of memory, counted from outside.
    fn oom_kills(&self) -> u64 {
        0
    }

    /// So far; all of it after [`RunningSandbox::reap`], and still after [`RunningSandbox::destroy`].
    fn usage(&self, _usage: &mut Usage) {}

    /// The command itself, where there is no PID 1 above it.
    fn unsupervised_command(&mut self) -> Option<&mut dyn UnsupervisedCommand> {
        None
    }
}

/// A command that the launcher started as its own child, without a boundary.
pub trait UnsupervisedCommand {
    fn signal(&self, signal: i32);

    /// Why it could not be started.
    fn exec_failure(&self) -> Option<&ExecFailure>;

    /// How it ended, if it did.
    fn try_wait(&mut self) -> Option<ExitStatus>;
}
