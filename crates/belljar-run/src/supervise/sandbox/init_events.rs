//! Handles what PID 1 reports. All of it is hostile: what PID 1 cannot have sent ends the sandbox.

use std::time::Instant;

use belljar_record::RecordError;
use belljar_spec::denied_call::DeniedCallCount;
use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::wire::{ENTER_WORKDIR, FIRST_CONNECT_STREAM, WireError};

use super::super::channel::{Channel, InitEvent, MAIN_EXEC, protocol_violation};
use super::super::task::End;
use super::{SandboxEvent, SandboxParts, SandboxState};

/// Why a message could not be handled.
#[derive(Debug)]
pub(super) enum MessageError {
    /// It makes no sense.
    Invalid(WireError),
    Record(RecordError),
}

impl From<RecordError> for MessageError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl MessageError {
    pub(super) fn invalid(what: &str) -> Self {
        Self::Invalid(protocol_violation(what))
    }

    pub(super) fn unknown_exec() -> Self {
        Self::invalid("a report about a command that was never started")
    }
}

impl SandboxState {
    pub(super) fn take_messages(
        &mut self,
        parts: &mut SandboxParts<'_>,
        events: &mut Vec<SandboxEvent>,
    ) -> Result<(), RecordError> {
        if self.is_over() {
            return Ok(());
        }
        let Some(channel) = self.link.channel() else { return Ok(()) };
        let taken = channel.read().map_err(MessageError::Invalid).and_then(|messages| {
            messages.into_iter().try_for_each(|message| self.take(message, parts, events))
        });
        match taken {
            Ok(()) => Ok(()),
            Err(MessageError::Record(error)) => Err(error),
            Err(MessageError::Invalid(error)) => {
                self.result.tampered = Some(error);
                self.end();
                Ok(())
            }
        }
    }

    fn take(
        &mut self,
        message: InitEvent,
        parts: &mut SandboxParts<'_>,
        events: &mut Vec<SandboxEvent>,
    ) -> Result<(), MessageError> {
        match message {
            InitEvent::Data { stream, bytes } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(mux) = self.link.channel().map(Channel::mux_mut) {
                    self.network.take_data(stream, &bytes, mux);
                }
            }
            InitEvent::End { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(mux) = self.link.channel().map(Channel::mux_mut) {
                    self.network.take_end(stream, mux);
                }
            }
            InitEvent::Reset { stream } if stream >= FIRST_CONNECT_STREAM => {
                if let Some(mux) = self.link.channel().map(Channel::mux_mut) {
                    self.network.take_reset(stream, mux);
                }
            }
            InitEvent::Accepted { stream, port } => {
                if let Some(mux) = self.link.channel().map(Channel::mux_mut) {
                    self.network.accepted(stream, port, mux);
                }
            }
            InitEvent::Data { stream, bytes } => {
                events.push(SandboxEvent::Activity);
                self.take_output(stream, &bytes, parts)?;
            }
            InitEvent::End { stream } => {
                if let Some(task) = self.tasks.values_mut().find(|task| task.has_stream(stream)) {
                    task.end_output(stream);
                }
            }
            InitEvent::Reset { stream } => {
                for input in self.inputs().filter(|input| input.goes_to(stream)) {
                    input.close();
                }
            }
            InitEvent::AttestedBrief { exec, attestation } => {
                self.attested(exec, &attestation, parts.recorder)?;
            }
            InitEvent::NotPrepared { exec, step, why } => {
                let why = if step == ENTER_WORKDIR { why } else { format!("{step}: {why}") };
                self.exec_failed(exec, belljar_spec::ExecFailure::Other { why })?;
            }
            InitEvent::Started { exec } => {
                let task = self.tasks.get(&exec).ok_or_else(MessageError::unknown_exec)?;
                match task.follower {
                    Some(follower) => {
                        let message = FromSupervisor::TaskStarted { task: follower.task, exec };
                        parts.clients.send(follower.client, &message);
                    }
                    // Whoever detached the run waits for this.
                    None if exec == MAIN_EXEC => {
                        parts.clients.send_all(&FromSupervisor::TaskStarted { task: exec, exec });
                    }
                    None => {}
                }
            }
            InitEvent::NotExecuted { exec, failure } => {
                let followed = self.tasks.get(&exec).is_some_and(|task| task.follower.is_some());
                if exec == MAIN_EXEC && !followed {
                    let failure = failure.clone();
                    parts.clients.send_all(&FromSupervisor::TaskFailed { task: exec, failure });
                }
                self.exec_failed(exec, failure)?;
            }
            InitEvent::Exited { exec, status } => {
                if !self.tasks.contains_key(&exec) {
                    return Err(MessageError::unknown_exec());
                }
                self.end_exec(exec, End::Exited(status));
            }
            InitEvent::DeadlinePassed => {
                events.push(SandboxEvent::DeadlinePassed);
                self.end();
            }
            InitEvent::Quiet => {
                if self.ends_when_quiet() {
                    self.end();
                }
            }
            InitEvent::CallsDenied(calls) => {
                let log = self.denied_calls.as_mut().filter(|_| is_plausible(&calls));
                let log =
                    log.ok_or_else(|| MessageError::invalid("system calls that it cannot report"))?;
                log.take(&calls, Instant::now(), parts.recorder)?;
            }
            InitEvent::Attested(_) => return Err(MessageError::invalid("a second attestation")),
            InitEvent::Gone => self.end(),
        }
        Ok(())
    }

    fn take_output(
        &mut self,
        stream: u32,
        bytes: &[u8],
        parts: &mut SandboxParts<'_>,
    ) -> Result<(), MessageError> {
        let Some(channel) = self.link.channel() else { return Err(MessageError::unknown_exec()) };
        match self.tasks.values_mut().find(|task| task.has_stream(stream)) {
            Some(task) => {
                task.take_output(stream, bytes, channel, parts.clients, parts.recorder)?;
            }
            None => channel.consumed(stream, bytes.len()), // of a command that is forgotten
        }
        Ok(())
    }
}

fn is_plausible(calls: &[DeniedCallCount]) -> bool {
    calls.iter().all(|counted| counted.count > 0 && counted.call.is_plausible())
}
