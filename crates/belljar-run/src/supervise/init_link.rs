//! The link to PID 1, or to the plain child of the host backend.

use belljar_backend::Started;

use super::channel::{Channel, MAIN_EXEC};

#[derive(Debug)]
pub(crate) enum Inside {
    Init(Box<Channel>),
    /// The host backend's command: no PID 1, no channel, no attestation.
    Child,
}

impl Inside {
    pub(super) fn channel(&mut self) -> Option<&mut Channel> {
        match self {
            Self::Init(channel) => Some(channel),
            Self::Child => None,
        }
    }

    pub(super) fn channel_ref(&self) -> Option<&Channel> {
        match self {
            Self::Init(channel) => Some(channel),
            Self::Child => None,
        }
    }

    /// To the run's own command.
    pub(super) fn signal_command(&mut self, started: &mut Started, signal: i32) {
        match self {
            Self::Init(channel) => channel.signal(MAIN_EXEC, signal),
            Self::Child => {
                if let Some(child) = started.sandbox.unsupervised_command() {
                    child.signal(signal);
                }
            }
        }
    }

    pub(super) fn signal_all(&mut self, started: &mut Started, signal: i32) {
        match self {
            Self::Init(channel) => channel.signal_all(signal),
            Self::Child => self.signal_command(started, signal),
        }
    }
}
