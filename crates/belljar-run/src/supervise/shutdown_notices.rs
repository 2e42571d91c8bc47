//! The last words of a run, when its record has its end.
//!
//! A reader that is slow, or stopped, holds up nothing but itself: what it has not taken waits here.

use std::time::{Duration, Instant};

use belljar_spec::wire::control::{FromSupervisor, StopReport};
use rustix::event::{PollFd, PollFlags};

use super::client::Clients;
use super::libc_signal::{CHLD, WINCH};
use super::outside::Signals;
use super::readiness::wait_until;
use super::task::Task;
use super::terminal::RawTerminal;

/// A connection that takes nothing for so long is given up.
const CLIENTS_WITHIN: Duration = Duration::from_secs(10);

/// A command that is over, and what its follower is told after its last byte.
#[derive(Debug)]
pub(super) struct ShutdownNotice {
    pub(super) task: Task,
    pub(super) message: Option<FromSupervisor>,
}

impl ShutdownNotice {
    /// Somebody at a connection has not taken all of it.
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
    pub(super) terminal: Option<RawTerminal>,
}

impl ShutdownNotices {
    pub(super) fn say(mut self, report: StopReport) {
        self.deliver();
        drop(self.terminal.take());
        for ShutdownNotice { task, message } in &self.tasks {
            if let (Some(follower), Some(message)) = (task.follower, message) {
                self.clients.end_task(follower.client, follower.task, message);
            }
        }
        self.clients.dismiss(&FromSupervisor::Stopped(Box::new(report)));
    }

    /// Those who take nothing find the connection closed: what they miss must not look like an end.
    fn give_up(&mut self) {
        for farewell in self.tasks.iter_mut().filter(|farewell| farewell.is_followed()) {
            if let Some(follower) = farewell.task.follower.take() {
                self.clients.remove(follower.client);
            }
            farewell.task.drop_waiting();
        }
    }

    /// What was said and not yet taken. The caller's own streams are waited for as long as it takes, or
    /// until a signal asks to end.
    fn deliver(&mut self) {
        let mut until = Instant::now() + CLIENTS_WITHIN;
        loop {
            let waiting = |tasks: &[ShutdownNotice]| {
                tasks.iter().map(|one| one.task.waiting()).sum::<usize>()
            };
            let before = waiting(&self.tasks);
            // Before the bytes: room that came after them would be slept on.
            self.clients.take_windows();
            for ShutdownNotice { task, .. } in &mut self.tasks {
                task.pass_on(&mut self.clients);
            }
            self.clients.flush();
            if waiting(&self.tasks) < before {
                until = Instant::now() + CLIENTS_WITHIN;
            } else if Instant::now() >= until {
                self.give_up();
            }
            if self.tasks.iter().all(|farewell| farewell.task.is_finished()) {
                return;
            }
            if self.signals.take().iter().any(|signal| !matches!(*signal, CHLD | WINCH)) {
                return;
            }
            let followed = self.tasks.iter().any(|farewell| farewell.is_followed());
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
