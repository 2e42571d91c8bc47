//! What PID 1 told.

use std::time::Instant;

use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::wire::{FIRST_CONNECT_STREAM, WireError};

use super::Inside;
use super::channel::{News, lie};
use super::follow::Run;
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
    fn take(&mut self, news: News) -> Result<Result<(), WireError>, RecordError> {
        let unknown = || Ok(Err(lie("news of a command that was never asked for")));
        match news {
            News::Data { stream, bytes } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_data(stream, &bytes, channel.mux_mut());
                }
            }
            News::End { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_end(stream, channel.mux_mut());
                }
            }
            News::Reset { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.take_reset(stream, channel.mux_mut());
                }
            }
            News::Accepted { stream, port } => {
                if let Some(channel) = self.inside.channel() {
                    self.crossing.accepted(stream, port, channel.mux_mut());
                }
            }
            News::Data { stream, bytes } => {
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
            News::End { stream } => {
                if let Some(task) = self.tasks.values_mut().find(|task| task.has_stream(stream)) {
                    task.end_output(stream);
                }
            }
            News::Reset { stream } => {
                let tasks = self.tasks.values_mut();
                for input in tasks.filter_map(|task| task.input.as_mut()) {
                    if input.goes_to(stream) {
                        input.close();
                    }
                }
            }
            News::AttestedShort { exec, attestation } => {
                return self.attested(exec, &attestation);
            }
            News::NotPrepared { exec, step, why } => {
                let why = format!("{step}: {why}");
                return self.never_began(exec, belljar_spec::ExecFailure::Other { why });
            }
            News::Started { exec } => match self.tasks.get(&exec) {
                Some(task) => {
                    if let Some(follower) = task.follower {
                        let message = FromSupervisor::TaskStarted { task: follower.task, exec };
                        self.clients.say(follower.client, &message);
                    }
                }
                None => return unknown(),
            },
            News::NotExecuted { exec, failure } => return self.never_began(exec, failure),
            News::Exited { exec, status } => {
                if !self.tasks.contains_key(&exec) {
                    return unknown();
                }
                self.end_task(exec, End::Exited(status));
            }
            News::DeadlinePassed => {
                self.supervised.stopping = Some(Stopping::Deadline);
                self.end();
            }
            News::Quiet => {
                if self.waits_for_quiet() {
                    self.end();
                }
            }
            News::Attested(_) => return Ok(Err(lie("a second attestation"))),
            News::Gone => self.end(),
        }
        Ok(Ok(()))
    }
}
