//! What is due in a sandbox after some time: its lease, its samples, the deadlines of its commands, and its end where
//! the channel does not report it.

use std::time::{Duration, Instant};

use belljar_spec::wire::ToInit;
use belljar_spec::wire::control::Keep;

use super::super::channel::MAIN_EXEC;
use super::super::denied_calls::DeniedCallLog;
use super::super::readiness::is_readable;
use super::super::task::{End, EndedBy};
use super::{Lifecycle, SandboxState};

/// How often a kept sandbox that was asked to stop is checked.
const QUIET_CHECK: Duration = Duration::from_millis(20);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

impl SandboxState {
    pub(super) fn stopping(&mut self) {
        if self.lifecycle == Lifecycle::Running {
            self.lifecycle = Lifecycle::Stopping;
        }
    }

    /// A kept sandbox that was asked to stop ends as soon as nothing runs in it.
    pub(super) fn ends_when_quiet(&self) -> bool {
        self.keep == Keep::UntilStopped && self.lifecycle == Lifecycle::Stopping
    }

    /// When the next of these is due, while it runs.
    pub(super) fn next_upkeep(&self) -> Option<Instant> {
        let tasks = self.tasks.values().flat_map(|task| [task.deadline, task.give_up_at]);
        let quiet = self.ends_when_quiet().then(|| Instant::now() + QUIET_CHECK);
        [
            quiet,
            self.link.channel_ref().and_then(|channel| channel.next_keepalive()),
            self.exit_watch.deadline(),
            self.network.next_moment(),
            self.denied_calls.as_ref().and_then(DeniedCallLog::due),
            Some(self.sampled + SAMPLE_INTERVAL),
        ]
        .into_iter()
        .chain(tasks)
        .flatten()
        .chain(self.leftovers.values().copied())
        .min()
    }

    pub(super) fn upkeep(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        if self.ends_when_quiet() && self.started.sandbox.is_quiet() {
            self.end();
        }
        if self.started.sandbox.end().is_some_and(is_readable) {
            self.exit_watch.found_gone(now);
        }
        if self.exit_watch.deadline().is_some_and(|until| now >= until) {
            self.end();
            return;
        }
        if let Some(channel) = self.link.channel() {
            channel.keep_lease(now);
        }
        if now >= self.sampled + SAMPLE_INTERVAL {
            self.sampled = now;
            self.started.sandbox.sample();
        }
        self.end_overdue_tasks(now);
    }

    fn end_overdue_tasks(&mut self, now: Instant) {
        let mut overdue = Vec::new();
        for task in self.tasks.values_mut() {
            if task.deadline.is_some_and(|at| now >= at) {
                task.deadline = None;
                task.end(EndedBy::Deadline);
                overdue.push(task.exec);
            }
            if task.give_up_at.is_some_and(|at| now >= at) {
                task.stop_waiting(self.link.channel());
            }
        }
        self.leftovers.retain(|exec, at| {
            let is_over = now >= *at;
            overdue.extend(is_over.then_some(*exec));
            !is_over
        });
        if let Some(channel) = self.link.channel() {
            for exec in overdue {
                channel.post(&ToInit::KillTree { exec });
            }
        }
    }

    /// A command without a PID 1 above it is the supervisor's own child.
    pub(super) fn reap_unsupervised_command(&mut self) {
        let command = self.started.sandbox.unsupervised_command();
        if let Some(status) = command.and_then(|child| child.try_wait())
            && !self.is_over()
        {
            self.end_exec(MAIN_EXEC, End::Exited(status));
        }
    }
}
