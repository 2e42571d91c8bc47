//! Configures a command and starts it in a sandbox.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::wire::Work;
use belljar_spec::wire::control::{Bond, Streams, TaskRequest, ToSupervisor, WindowSize};
use belljar_spec::{ExitSource, OsText};

use super::error::Error;
use super::link::{Link, TaskNumber};
use super::output::{Collected, DEFAULT_OUTPUT_LIMIT, Output, output};
use super::running::Running;
use super::task::Source;

#[derive(Debug)]
enum ExecInput {
    None,
    Whole(Vec<u8>),
    Streamed,
}

/// A command that was not started yet. [`Exec::output`] collects its output, [`Exec::spawn`] streams it.
#[derive(Debug)]
pub struct Exec {
    link: Arc<Link>,
    work: Work,
    env: Vec<(String, Option<OsText>)>,
    workdir: Option<OsText>,
    input: ExecInput,
    terminal: Option<WindowSize>,
    timeout: Option<Duration>,
    limit: usize,
    bond: Bond,
}

impl Exec {
    pub(super) fn new(link: &Arc<Link>, argv: Vec<OsString>) -> Self {
        let argv = argv.into_iter().map(OsText::from).collect();
        Self::of(link, Work::Program { argv })
    }

    pub(super) fn of(link: &Arc<Link>, work: Work) -> Self {
        Self {
            link: Arc::clone(link),
            work,
            env: Vec::new(),
            workdir: None,
            input: ExecInput::None,
            terminal: None,
            timeout: None,
            limit: DEFAULT_OUTPUT_LIMIT,
            bond: Bond::EndsWithConnection,
        }
    }

    /// Sets a variable, in addition to the sandbox's.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into().into())));
        self
    }

    pub fn env_remove(mut self, name: impl Into<String>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// The working directory: absolute, or relative to the sandbox's, which is the default.
    pub fn workdir(mut self, path: impl Into<OsString>) -> Self {
        self.workdir = Some(path.into().into());
        self
    }

    /// The complete standard input. The default is none.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = ExecInput::Whole(bytes.into());
        self
    }

    /// Standard input is written to [`Running::stdin`].
    pub fn stdin_stream(mut self) -> Self {
        self.input = ExecInput::Streamed;
        self
    }

    /// Kills the command, with everything it started, after this time; see [`Error::Deadline`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many bytes of each stream [`Exec::output`] keeps: half from the start, half from the end.
    pub fn limit_output(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Gives the command a terminal. Its output is the standard output of [`Exec::output`].
    pub fn terminal(mut self, rows: u16, columns: u16) -> Self {
        self.terminal = Some(WindowSize { rows, columns });
        self
    }

    /// The command outlives its handle and the connection, but not the sandbox.
    pub fn lives_on(mut self) -> Self {
        self.bond = Bond::LivesOn;
        self
    }

    /// Runs the command to its end. A command that fails is no error: see [`Output::exit`].
    pub async fn output(self) -> Result<Output, Error> {
        let limit = self.limit;
        let running = self.spawn().await?;
        collect(running, limit).await
    }

    /// Starts the command, and returns when it runs.
    pub async fn spawn(self) -> Result<Running, Error> {
        let streams = match (self.terminal, &self.input) {
            (Some(size), _) => Streams::Terminal(size),
            (None, ExecInput::None) => Streams::Output,
            (None, ExecInput::Whole(_) | ExecInput::Streamed) => Streams::InputAndOutput,
        };
        let feed = match self.input {
            ExecInput::Whole(bytes) => Some(bytes),
            ExecInput::None | ExecInput::Streamed => None,
        };
        let program = match &self.work {
            Work::Program { argv } => argv.first().cloned().unwrap_or_default(),
            Work::Nothing => "nothing".into(),
            Work::Pack { path } | Work::Unpack { path, .. } | Work::List { path } => path.clone(),
        };
        let (work, env, workdir, bond) = (self.work, self.env, self.workdir, self.bond);
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let timeout_ms = self.timeout.map(millis);
        let request = |task| {
            let request = TaskRequest { task, work, env, workdir, streams, timeout_ms, bond };
            ToSupervisor::Exec(Box::new(request))
        };
        let task = self.link.begin(TaskNumber::Next, streams, feed, request)?;
        // From here on, a cancelled future drops this, which kills the command.
        let running = Running::new(&self.link, task, bond, program);
        running.started().await?;
        Ok(running)
    }
}

/// Collects the output of a command, and waits for its end.
pub(super) async fn collect(mut running: Running, limit: usize) -> Result<Output, Error> {
    let (mut stdout, mut stderr) = (Collected::new(limit), Collected::new(limit));
    while let Some(chunk) = running.next().await {
        match chunk.source {
            Source::Stdout | Source::Terminal => stdout.push(&chunk.bytes),
            Source::Stderr => stderr.push(&chunk.bytes),
        }
    }
    let exit = running.wait().await?;
    let output = output(stdout, stderr, exit);
    match exit.source {
        ExitSource::Deadline => Err(Error::Deadline { output: Box::new(output) }),
        _ => Ok(output),
    }
}
