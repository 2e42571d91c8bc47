//! The last messages to clients, sent when the end of the run is recorded.
//!
//! A reader that is slow, or stopped, delays nothing but itself: what it has not taken waits here.

use std::time::{Duration, Instant};

use belljar_spec::wire::control::{FromSupervisor, StopReport};
use rustix::event::{PollFd, PollFlags};

use super::client::Clients;
use super::libc_signal::{CHLD, WINCH};
use super::outside::Signals;
use super::readiness::wait_until;
use super::task::Task;
use super::terminal::CallersTerminal;

/// A client that takes nothing for so long is disconnected.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A command that is over, and the message for its follower after its last byte.
#[derive(Debug)]
pub(super) struct ShutdownNotice {
    pub(super) task: Task,
    pub(super) message: Option<FromSupervisor>,
}

impl ShutdownNotice {
    /// A client has not taken all of its output.
    fn is_followed(&self) -> bool {
        self.task.follower.is_some() && !self.task.is_finished()
    }
}

#[derive(Debug)]
pub(super) struct ShutdownNotices {
    pub(super) clients: Clients,
    pub(super) tasks: Vec<ShutdownNotice>,
    pub(super) signals: Signals,
    /// Raw until the last byte of the command was shown on it.
    pub(super) terminal: Option<CallersTerminal>,
}

impl ShutdownNotices {
    pub(super) fn send(mut self, report: StopReport) {
        self.deliver();
        drop(self.terminal.take());
        for ShutdownNotice { task, message } in &self.tasks {
            if let (Some(follower), Some(message)) = (task.follower, message) {
                self.clients.end_task(follower.client, follower.task, message);
            }
        }
        self.clients.close(&FromSupervisor::Stopped(Box::new(report)));
    }

    /// Clients that take nothing are disconnected: what they miss must not look like an end.
    fn give_up(&mut self) {
        for notice in self.tasks.iter_mut().filter(|notice| notice.is_followed()) {
            if let Some(follower) = notice.task.follower.take() {
                self.clients.remove(follower.client);
            }
            notice.task.drop_waiting();
        }
    }

    /// Delivers output that was not taken yet. The caller's own streams are waited for as long as it takes, or until a
    /// signal arrives.
    fn deliver(&mut self) {
        let mut until = Instant::now() + CLIENT_TIMEOUT;
        loop {
            let waiting = |tasks: &[ShutdownNotice]| {
                tasks.iter().map(|one| one.task.waiting()).sum::<usize>()
            };
            let before = waiting(&self.tasks);
            // Before the bytes: room that comes after them would not end the wait.
            self.clients.take_windows();
            for ShutdownNotice { task, .. } in &mut self.tasks {
                task.pass_on(&mut self.clients);
            }
            self.clients.flush();
            if waiting(&self.tasks) < before {
                until = Instant::now() + CLIENT_TIMEOUT;
            } else if Instant::now() >= until {
                self.give_up();
            }
            if self.tasks.iter().all(|notice| notice.task.is_finished()) {
                return;
            }
            if self.signals.take().iter().any(|signal| !matches!(*signal, CHLD | WINCH)) {
                return;
            }
            let followed = self.tasks.iter().any(|notice| notice.is_followed());
            let mut fds = vec![PollFd::new(&self.signals.fd, PollFlags::IN)];
            self.clients.watch(&mut fds);
            for ShutdownNotice { task, .. } in &self.tasks {
                task.watch(None, &mut fds);
            }
            if wait_until(&mut fds, followed.then_some(until)).is_err() {
                return;
            }
        }
    }
}
