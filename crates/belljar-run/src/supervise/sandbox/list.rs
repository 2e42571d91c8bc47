//! The sandboxes of a run. There is one today, the main one; services will be further entries.

use std::time::{Duration, Instant};

use belljar_backend::{DestroyError, Started};
use belljar_spec::Plan;

use super::super::client::{ClientId, Clients};
use super::super::task::Follower;
use super::{Promised, SandboxId, SandboxState};

/// Never empty: the main sandbox is the first.
#[derive(Debug)]
pub(crate) struct Sandboxes(Vec<SandboxState>);

impl Sandboxes {
    pub(crate) fn new(main: Started, plan: &Plan, promised: Promised) -> Self {
        Self(vec![SandboxState::new(SandboxId::MAIN, main, plan, promised)])
    }

    pub(crate) fn main(&self) -> &SandboxState {
        &self.0[SandboxId::MAIN.0]
    }

    pub(crate) fn main_mut(&mut self) -> &mut SandboxState {
        &mut self.0[SandboxId::MAIN.0]
    }

    pub(in crate::supervise) fn iter(&self) -> impl Iterator<Item = &SandboxState> {
        self.0.iter()
    }

    pub(in crate::supervise) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SandboxState> {
        self.0.iter_mut()
    }

    pub(in crate::supervise) fn ids(&self) -> impl Iterator<Item = SandboxId> + use<> {
        (0..self.0.len()).map(SandboxId)
    }

    pub(in crate::supervise) fn get_mut(&mut self, id: SandboxId) -> Option<&mut SandboxState> {
        self.0.get_mut(id.0)
    }

    /// The sandbox in which this client follows a task by this number.
    pub(in crate::supervise) fn with_task(
        &mut self,
        follower: Follower,
    ) -> Option<&mut SandboxState> {
        self.0.iter_mut().find(|sandbox| sandbox.is_followed_by(follower))
    }

    /// All are over, and everything they wrote is recorded.
    pub(in crate::supervise) fn are_finished(&self) -> bool {
        self.0.iter().all(SandboxState::is_finished)
    }

    /// How long the loop is to pause so that the pipes of busy commands fill.
    pub(in crate::supervise) fn pause(&self) -> Option<Duration> {
        self.0.iter().filter_map(|sandbox| sandbox.output.pause()).max()
    }

    /// The run is asked to stop: a kept sandbox ends as soon as nothing runs in it.
    pub(in crate::supervise) fn stopping(&mut self) {
        self.0.iter_mut().for_each(SandboxState::stopping);
    }

    pub(in crate::supervise) fn signal_all(&mut self, signal: i32) {
        self.0.iter_mut().for_each(|sandbox| sandbox.signal_all(signal));
    }

    pub(in crate::supervise) fn kill_at(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|sandbox| sandbox.kill(now));
    }

    pub(in crate::supervise) fn end(&mut self) {
        self.0.iter_mut().for_each(SandboxState::end);
    }

    /// What cannot be recorded is not read.
    pub(in crate::supervise) fn give_up_output(&mut self) {
        self.0.iter_mut().for_each(SandboxState::give_up_output);
    }

    pub(in crate::supervise) fn flush(&mut self) {
        for channel in self.0.iter_mut().filter_map(|sandbox| sandbox.link.channel()) {
            channel.flush();
        }
    }

    /// Standard input of a task that this client follows.
    pub(in crate::supervise) fn take_input(
        &mut self,
        (client, stream): (ClientId, u32),
        bytes: &[u8],
        clients: &mut Clients,
    ) {
        let mut inputs = self.0.iter_mut().flat_map(SandboxState::inputs);
        match inputs.find(|input| input.is_fed_by(client, stream)) {
            Some(input) => input.accept(bytes),
            None => clients.consumed(client, stream, bytes.len()), // of a task that is over
        }
    }

    pub(in crate::supervise) fn end_input(&mut self, client: ClientId, stream: u32) {
        let inputs = self.0.iter_mut().flat_map(SandboxState::inputs);
        for input in inputs.filter(|input| input.is_fed_by(client, stream)) {
            input.end();
        }
    }

    pub(crate) fn kill(&mut self) {
        self.0.iter_mut().for_each(|sandbox| sandbox.started.sandbox.kill());
    }

    pub(crate) fn reap(&mut self) {
        self.0.iter_mut().for_each(|sandbox| sandbox.started.sandbox.reap());
    }

    /// Removes all of them; the error is the first one.
    pub(crate) fn destroy(&mut self) -> Result<(), DestroyError> {
        let destroyed = self.0.iter_mut().map(|sandbox| sandbox.started.sandbox.destroy());
        destroyed.fold(Ok(()), Result::and)
    }
}
