//! Blocking variants of `Exec` and `Running`.

use std::ffi::OsString;
use std::time::Duration;

use belljar_spec::Exit;
use tokio::io::AsyncWriteExt;

use super::runtime::{block_on, block_on_value};
use crate::{Chunk, Error, Input, Output};

/// A command that was not started yet; see [`crate::Exec`].
#[derive(Debug)]
pub struct Exec {
    inner: crate::Exec,
}

impl Exec {
    pub(super) fn new(inner: crate::Exec) -> Self {
        Self { inner }
    }

    fn map(self, change: impl FnOnce(crate::Exec) -> crate::Exec) -> Self {
        Self { inner: change(self.inner) }
    }

    pub fn env(self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.map(|exec| exec.env(name, value))
    }

    pub fn env_remove(self, name: impl Into<String>) -> Self {
        self.map(|exec| exec.env_remove(name))
    }

    pub fn workdir(self, path: impl Into<OsString>) -> Self {
        self.map(|exec| exec.workdir(path))
    }

    pub fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.map(|exec| exec.stdin(bytes))
    }

    /// Standard input is written with [`Running::write`].
    pub fn stdin_stream(self) -> Self {
        self.map(crate::Exec::stdin_stream)
    }

    pub fn timeout(self, timeout: Duration) -> Self {
        self.map(|exec| exec.timeout(timeout))
    }

    pub fn limit_output(self, bytes: usize) -> Self {
        self.map(|exec| exec.limit_output(bytes))
    }

    pub fn terminal(self, rows: u16, columns: u16) -> Self {
        self.map(|exec| exec.terminal(rows, columns))
    }

    pub fn lives_on(self) -> Self {
        self.map(crate::Exec::lives_on)
    }

    /// Runs the command to its end. A command that fails is no error: see [`Output::exit`].
    pub fn output(self) -> Result<Output, Error> {
        block_on(self.inner.output())
    }

    /// Starts the command, and returns when it runs.
    pub fn spawn(self) -> Result<Running, Error> {
        let mut inner = block_on(self.inner.spawn())?;
        let input = inner.stdin();
        Ok(Running { inner, input })
    }
}

/// A command that runs; see [`crate::Running`]. Dropping it kills the command.
#[derive(Debug)]
pub struct Running {
    inner: crate::Running,
    input: Option<Input>,
}

impl Running {
    /// Waits for the next piece of output; `None` after the last one.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, Error> {
        block_on_value(self.inner.next())
    }

    /// Writes to the command's input, if it was started with [`Exec::stdin_stream`] or a terminal. Waits while the
    /// command does not read.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(input) = &mut self.input else {
            let error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
            return Err(Error::io("write to the command, which has no open input")(error));
        };
        let written = block_on_value(input.write_all(bytes))?;
        written.map_err(Error::io("write to the command"))
    }

    /// Ends the command's input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        self.inner.signal(signal)
    }

    pub fn resize(&self, rows: u16, columns: u16) -> Result<(), Error> {
        self.inner.resize(rows, columns)
    }

    /// Kills the command and everything it started, and waits for its end.
    pub fn kill(&mut self) -> Result<Exit, Error> {
        block_on(self.inner.kill())
    }

    /// Waits for the command's end. Unread output is dropped; the input ends first.
    pub fn wait(&mut self) -> Result<Exit, Error> {
        self.close_input();
        block_on(self.inner.wait())
    }
}
