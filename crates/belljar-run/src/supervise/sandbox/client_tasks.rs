//! What clients do to the commands that they follow.

use belljar_spec::Terminal;
use belljar_spec::wire::ToInit;
use belljar_spec::wire::control::{Bond, ControlError, Streams, TaskStreams, WindowSize};

use super::super::channel::MAIN_EXEC;
use super::super::client::ClientId;
use super::super::libc_signal;
use super::super::task::{EndedBy, Follower, Task};
use super::SandboxState;

impl SandboxState {
    pub(super) fn is_followed_by(&self, follower: Follower) -> bool {
        self.tasks.values().any(|task| task.follower == Some(follower))
    }

    fn task_of(&mut self, follower: Follower) -> Option<&mut Task> {
        self.tasks.values_mut().find(|task| task.follower == Some(follower))
    }

    /// The client follows the main command from now on.
    pub(in crate::supervise) fn attach(
        &mut self,
        client: ClientId,
        streams: Streams,
    ) -> Result<(), ControlError> {
        let bad = |why: &str| ControlError::BadTask { task: MAIN_EXEC, why: why.to_owned() };
        let task = self.tasks.get_mut(&MAIN_EXEC).ok_or(ControlError::NoCommand)?;
        if !task.is_running() {
            return Err(ControlError::NoCommand);
        }
        if task.is_followed() {
            return Err(ControlError::AlreadyAttached);
        }
        let has_terminal = self.command.terminal == Terminal::Pty;
        match (streams, has_terminal) {
            (Streams::Terminal(_), false) => return Err(bad("it has no terminal")),
            (Streams::Output | Streams::InputAndOutput, true) => {
                return Err(bad("it has a terminal; attach with one"));
            }
            (Streams::InputAndOutput, false) if task.input.is_none() => {
                return Err(bad("its input was not kept open; start it with -i"));
            }
            _ => {}
        }
        let numbers = TaskStreams::of(MAIN_EXEC).ok_or_else(|| bad("its number is too high"))?;
        task.follow(client, numbers, streams);
        if let Streams::Terminal(size) = streams {
            self.resize_exec(MAIN_EXEC, (size.rows, size.columns));
        }
        Ok(())
    }

    pub(in crate::supervise) fn signal_task(&mut self, follower: Follower, signal: i32) {
        let Some(task) = self.task_of(follower) else { return };
        use libc_signal::{HUP, INT, QUIT, TERM};
        if matches!(signal, INT | QUIT | TERM | HUP) {
            task.ended_by = task.ended_by.or(Some(EndedBy::Request));
        }
        let exec = task.exec;
        self.signal_exec(exec, signal);
    }

    pub(in crate::supervise) fn resize_task(&mut self, follower: Follower, size: WindowSize) {
        if let Some(exec) = self.task_of(follower).map(|task| task.exec) {
            self.resize_exec(exec, (size.rows, size.columns));
        }
    }

    pub(in crate::supervise) fn kill_task(&mut self, follower: Follower) {
        let Some(task) = self.task_of(follower) else { return };
        task.end(EndedBy::Request);
        let exec = task.exec;
        let Some(channel) = self.link.channel() else { return };
        if exec == MAIN_EXEC {
            channel.signal(exec, libc_signal::KILL);
        } else {
            channel.post(&ToInit::KillTree { exec });
        }
    }

    /// The client reads no more of this stream.
    pub(in crate::supervise) fn stop_output(&mut self, client: ClientId, stream: u32) {
        for task in self.tasks.values_mut() {
            task.stop_output(client, stream, self.link.channel());
        }
    }

    /// The client disconnected: its commands end if they are bound to the connection.
    pub(in crate::supervise) fn client_is_gone(&mut self, client: ClientId) {
        for task in self.tasks.values_mut() {
            if task.follower.is_none_or(|follower| follower.client != client) {
                continue;
            }
            task.unfollow(self.link.channel());
            if task.bond == Bond::EndsWithConnection && task.is_running() {
                task.end(EndedBy::Request);
                if task.exec != MAIN_EXEC
                    && let Some(channel) = self.link.channel()
                {
                    channel.post(&ToInit::KillTree { exec: task.exec });
                }
            }
        }
    }
}
