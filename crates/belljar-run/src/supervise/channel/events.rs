//! Checks the messages of PID 1, and turns them into events for the supervisor.

use belljar_spec::denied_call::DeniedCallCount;
use belljar_spec::wire::{
    Arrival, FIRST_ACCEPT_STREAM, FromInit, InitHello, PROTOCOL_MAX, PROTOCOL_MIN, WireError,
};
use belljar_spec::{Attestation, BriefAttestation, ExecFailure, ExitStatus};

use super::super::SuperviseError;
use super::{Channel, MAIN_EXEC, protocol_violation};

/// What PID 1 reported.
pub(in crate::supervise) enum InitEvent {
    Attested(Box<Attestation>),
    AttestedBrief {
        exec: u32,
        attestation: Box<BriefAttestation>,
    },
    NotPrepared {
        exec: u32,
        step: String,
        why: String,
    },
    Started {
        exec: u32,
    },
    NotExecuted {
        exec: u32,
        failure: ExecFailure,
    },
    Exited {
        exec: u32,
        status: ExitStatus,
    },
    DeadlinePassed,
    Quiet,
    Data {
        stream: u32,
        bytes: Vec<u8>,
    },
    End {
        stream: u32,
    },
    Reset {
        stream: u32,
    },
    /// A process inside connected to a port; the stream is open on this end.
    Accepted {
        stream: u32,
        port: u16,
    },
    /// Refused system calls, in a traced sandbox.
    CallsDenied(Vec<DeniedCallCount>),
    /// The channel closed.
    Gone,
}

impl Channel {
    pub(super) fn take_arrivals(&mut self, events: &mut Vec<InitEvent>) -> Result<(), WireError> {
        while let Some(arrival) = self.mux.next_arrival()? {
            match arrival {
                Arrival::Data { stream, bytes } => events.push(InitEvent::Data { stream, bytes }),
                Arrival::End { stream } => events.push(InitEvent::End { stream }),
                Arrival::Reset { stream } => {
                    self.mux.end(stream); // so that both ends forget it
                    events.push(InitEvent::Reset { stream });
                }
                Arrival::Message(message) => {
                    events.extend(self.event_of(FromInit::parse(&message)?)?);
                }
            }
        }
        Ok(())
    }

    fn event_of(&mut self, message: FromInit) -> Result<Option<InitEvent>, WireError> {
        Ok(Some(match message {
            FromInit::Hello(InitHello { version, nonce, .. }) => {
                if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&version) {
                    self.bad_hello = Some(SuperviseError::Hello(format!("version {version}")));
                } else if nonce != self.nonce {
                    return Err(protocol_violation("a hello to another launch"));
                } else if let Some(link) = &mut self.reconnect {
                    link.greeted();
                }
                return Ok(None);
            }
            FromInit::Attested { exec, attestation }
                if exec == MAIN_EXEC || self.attests_too == Some(exec) =>
            {
                self.attests_too = None;
                InitEvent::Attested(attestation)
            }
            FromInit::Attested { .. } => {
                return Err(protocol_violation("an attestation that was not requested"));
            }
            FromInit::AttestedBrief { exec, attestation } => {
                InitEvent::AttestedBrief { exec, attestation }
            }
            FromInit::SetupFailed { exec, step, why } => InitEvent::NotPrepared { exec, step, why },
            FromInit::Started { exec } => InitEvent::Started { exec },
            FromInit::ExecFailed { exec, failure } => InitEvent::NotExecuted { exec, failure },
            FromInit::Exited { exec, status } => InitEvent::Exited { exec, status },
            FromInit::DeadlinePassed => InitEvent::DeadlinePassed,
            FromInit::Quiet => InitEvent::Quiet,
            FromInit::CallsDenied { calls } => InitEvent::CallsDenied(calls),
            FromInit::Accepted { stream, port } => return self.accepted(stream, port).map(Some),
        }))
    }

    /// The stream is open on this end before its first bytes are read.
    fn accepted(&mut self, stream: u32, port: u16) -> Result<InitEvent, WireError> {
        let expected = FIRST_ACCEPT_STREAM.checked_add(self.accepted);
        if expected != Some(stream) || !self.listen.contains(&port) {
            return Err(protocol_violation("a connection to a port that is none of the proxy's"));
        }
        self.accepted += 1;
        self.mux.open(stream)?;
        Ok(InitEvent::Accepted { stream, port })
    }
}
