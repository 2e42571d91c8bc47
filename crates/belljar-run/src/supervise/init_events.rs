//! What PID 1 told.

use std::time::Instant;

use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::wire::{FIRST_CONNECT_STREAM, WireError};

use super::Inside;
use super::channel::{InitEvent, protocol_violation};
use super::event_loop::Run;
use super::state::Stopping;
use super::task::End;
use belljar_record::RecordError;

impl Run<'_> {
    pub(super) fn take_messages(&mut self) -> Result<(), RecordError> {
        if self.state.is_over() {
            return Ok(());
        }
        let Some(channel) = self.inside.channel() else { return Ok(()) };
        match channel.read() {
            Ok(news) => {
                for item in news {
                    if let Err(error) = self.take(item)? {
                        self.tampered(error);
                        break;
                    }
                }
            }
            Err(error) => self.tampered(error),
        }
        Ok(())
    }

    fn tampered(&mut self, error: WireError) {
        self.supervised.tampered = Some(error);
        self.end();
    }

    /// The inner result is about PID 1: news that make no sense.
    fn take(&mut self, news: InitEvent) -> Result<Result<(), WireError>, RecordError> {
        let unknown = || Ok(Err(protocol_violation("news of a command that was never asked for")));
        match news {
            InitEvent::Data { stream, bytes } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_data(stream, &bytes, channel.mux_mut());
                }
            }
            InitEvent::End { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_end(stream, channel.mux_mut());
                }
            }
            InitEvent::Reset { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_reset(stream, channel.mux_mut());
                }
            }
            InitEvent::Accepted { stream, port } => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.accepted(stream, port, channel.mux_mut());
                }
            }
            InitEvent::Data { stream, bytes } => {
                self.state.something_happened(Instant::now());
                let Inside::Init(channel) = &mut self.inside else { return unknown() };
                match self.tasks.values_mut().find(|task| task.has_stream(stream)) {
                    Some(task) => task.take_output(
                        stream,
                        &bytes,
                        channel,
                        &mut self.clients,
                        &mut *self.recorder,
                    )?,
                    None => channel.consumed(stream, bytes.len()), // of a command that is forgotten
                }
            }
            InitEvent::End { stream } => {
                if let Some(task) = self.tasks.values_mut().find(|task| task.has_stream(stream)) {
                    task.end_output(stream);
                }
            }
            InitEvent::Reset { stream } => {
                let tasks = self.tasks.values_mut();
                for input in tasks.filter_map(|task| task.input.as_mut()) {
                    if input.goes_to(stream) {
                        input.close();
                    }
                }
            }
            InitEvent::AttestedShort { exec, attestation } => {
                return self.attested(exec, &attestation);
            }
            InitEvent::NotPrepared { exec, step, why } => {
                let why = format!("{step}: {why}");
                return self.never_began(exec, belljar_spec::ExecFailure::Other { why });
            }
            InitEvent::Started { exec } => match self.tasks.get(&exec) {
                Some(task) => {
                    if let Some(follower) = task.follower {
                        let message = FromSupervisor::TaskStarted { task: follower.task, exec };
                        self.clients.say(follower.client, &message);
                    }
                }
                None => return unknown(),
            },
            InitEvent::NotExecuted { exec, failure } => return self.never_began(exec, failure),
            InitEvent::Exited { exec, status } => {
                if !self.tasks.contains_key(&exec) {
                    return unknown();
                }
                self.end_task(exec, End::Exited(status));
            }
            InitEvent::DeadlinePassed => {
                self.supervised.stopping = Some(Stopping::Deadline);
                self.end();
            }
            InitEvent::Quiet => {
                if self.waits_for_quiet() {
                    self.end();
                }
            }
            InitEvent::Attested(_) => return Ok(Err(protocol_violation("a second attestation"))),
            InitEvent::Gone => self.end(),
        }
        Ok(Ok(()))
    }
}
