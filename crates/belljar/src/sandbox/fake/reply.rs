//! The reply of a scripted command: its output and its exit.

use std::time::Duration;

use belljar_spec::{ExecFailure, Exit, ExitSource, ExitStatus};

use super::FakeCall;

/// Returned by a script. The default prints nothing and exits with 0 at once.
#[derive(Clone, Debug)]
pub struct FakeReply {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
    pub(super) takes: Takes,
    pub(super) failure: Option<ExecFailure>,
    pub(super) then_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Time(Duration),
    /// Runs until it is killed or times out.
    Forever,
}

impl FakeReply {
    pub fn code(code: i32) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: Exit::of_belljar(code, ExitSource::Command),
            takes: Takes::Time(Duration::ZERO),
            failure: None,
            then_lost: false,
        }
    }

    pub fn signal(signal: u8) -> Self {
        Self { exit: Exit::of_command(ExitStatus::Signal(signal)), ..Self::code(0) }
    }

    pub fn stdout(bytes: impl Into<Vec<u8>>) -> Self {
        Self { stdout: bytes.into(), ..Self::code(0) }
    }

    pub fn with_stdout(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdout = bytes.into();
        self
    }

    pub fn with_stderr(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stderr = bytes.into();
        self
    }

    /// Prints at once, and exits after this time.
    pub fn takes(mut self, time: Duration) -> Self {
        self.takes = Takes::Time(time);
        self
    }

    /// Ends only when it is killed.
    pub fn forever(mut self) -> Self {
        self.takes = Takes::Forever;
        self
    }

    /// Fails to start. A command with input has started before its script is called, so it exits with the
    /// failure's code instead.
    pub fn failure(failure: ExecFailure) -> Self {
        let code = failure.exit_code();
        Self { failure: Some(failure), ..Self::code(code) }
    }

    /// Loses the connection after the output.
    pub fn then_lost(mut self) -> Self {
        self.then_lost = true;
        self
    }
}

/// The built-in programs.
pub(super) fn built_in(call: &FakeCall) -> Option<FakeReply> {
    let mut argv = call.argv.iter().map(|argument| argument.as_bytes());
    let name = argv.next()?;
    let rest: Vec<&[u8]> = argv.collect();
    Some(match name {
        b"true" => FakeReply::code(0),
        b"false" => FakeReply::code(1),
        b"echo" => FakeReply::stdout([rest.join(&b' '), b"\n".to_vec()].concat()),
        b"cat" => FakeReply::stdout(call.stdin.clone()),
        b"sleep" => {
            let seconds = rest.first().and_then(|text| std::str::from_utf8(text).ok());
            let seconds: f64 = seconds.and_then(|text| text.parse().ok())?;
            FakeReply::code(0).takes(Duration::try_from_secs_f64(seconds).ok()?)
        }
        _ => return None,
    })
}
