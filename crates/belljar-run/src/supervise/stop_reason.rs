//! Determines the one reason for which a run ended.

use belljar_spec::{EXIT_DEADLINE, EXIT_NOT_STARTED, Exit, ExitSource, ExitStatus, StopReason};

use super::Supervised;
use super::stop_clock::StopCause;

impl Supervised {
    /// The reason, and whose exit code it is. Memory is judged from outside.
    pub(crate) fn judged(&self, oom_kills: u64) -> (StopReason, Exit) {
        if self.main.tampered.is_some() {
            return (StopReason::Tampered, Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Policy));
        }
        if self.broken.is_some() {
            return (StopReason::Error, Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Sandbox));
        }
        if let Some(failure) = &self.main.failure {
            return (StopReason::Error, Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox));
        }
        if let Some(end) = &self.driven {
            return (end.reason, end.exit);
        }
        let by_us =
            |source| Exit { source, ..self.main.status.map_or(killed(source), Exit::of_command) };
        match (self.stopping, self.main.status) {
            (Some(StopCause::Deadline), _) => {
                (StopReason::Deadline, Exit::of_belljar(EXIT_DEADLINE, ExitSource::Deadline))
            }
            (Some(StopCause::DiskFull), _) => (StopReason::Limit, killed(ExitSource::Policy)),
            (Some(StopCause::Expired), _) => (StopReason::Expired, killed(ExitSource::Deadline)),
            (Some(StopCause::LoginExpired), _) => {
                (StopReason::LoginExpired, Exit::of_belljar(1, ExitSource::Policy))
            }
            (Some(StopCause::Idle), _) => (StopReason::Idle, killed(ExitSource::Deadline)),
            (Some(StopCause::Requested { signal }), _) if self.agent.is_some() => {
                let signal = u8::try_from(signal).ok();
                (StopReason::Stopped, Exit { code: None, signal, source: ExitSource::Sandbox })
            }
            // A sandbox that waits for commands ends because it is stopped.
            (Some(StopCause::Requested { .. }), status) if self.kept => {
                let nothing_ran = Exit::of_belljar(0, ExitSource::Sandbox);
                (StopReason::Stopped, status.map_or(nothing_ran, Exit::of_command))
            }
            (_, Some(ExitStatus::Signal(9)) | None) if oom_kills > 0 => {
                (StopReason::Oom, killed(ExitSource::Oom))
            }
            (Some(StopCause::Requested { .. }), Some(ExitStatus::Signal(_)) | None) => {
                (StopReason::Stopped, by_us(ExitSource::Command))
            }
            (_, Some(ExitStatus::Code(code))) => {
                (StopReason::Exited, Exit::of_command(ExitStatus::Code(code)))
            }
            (_, Some(status)) => (StopReason::Signal, Exit::of_command(status)),
            // PID 1 disappeared without a message.
            (_, None) => (StopReason::Lost, killed(ExitSource::Sandbox)),
        }
    }
}

fn killed(source: ExitSource) -> Exit {
    Exit { code: None, signal: Some(9), source }
}
