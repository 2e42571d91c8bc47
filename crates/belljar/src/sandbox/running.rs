//! A running command: its output, its input and its exit.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use belljar_spec::wire::control::{Bond, ToSupervisor, WindowSize};
use belljar_spec::{Exit, OsText};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::Error;
use super::link::{Link, State, register};
use super::task::{Chunk, Delivery, Phase, Source};

/// A running command in the sandbox. Dropping it kills the command and everything it started, unless
/// [`Exec::lives_on`](super::Exec::lives_on) was set.
#[derive(Debug)]
pub struct Running {
    link: Arc<Link>,
    task: u32,
    bond: Bond,
    program: OsText,
    /// Streams that were handed out as a [`Reader`].
    separate: Vec<Source>,
    input_taken: bool,
}

impl Running {
    pub(super) fn new(link: &Arc<Link>, task: u32, bond: Bond, program: OsText) -> Self {
        let link = Arc::clone(link);
        Self { link, task, bond, program, separate: Vec::new(), input_taken: false }
    }

    /// Waits until the command has started or failed to.
    pub(super) async fn started(&self) -> Result<(), Error> {
        poll_fn(|context| {
            let mut state = self.link.lock();
            if let Some(refusal) = state.refusal.take_if(|_| self.task == 0) {
                return Poll::Ready(Err(refusal.into()));
            }
            let lost = state.check();
            let Some(task) = state.tasks.get_mut(&self.task) else {
                return Poll::Ready(lost.and(Err(gone())));
            };
            match &task.phase {
                Phase::Asked => {}
                Phase::Running | Phase::Exited(_) => return Poll::Ready(Ok(())),
                Phase::Failed(_) | Phase::Refused(_) => {
                    return Poll::Ready(self.outcome(&task.phase).map(drop));
                }
            }
            if let Err(error) = lost {
                return Poll::Ready(Err(error));
            }
            register(&mut task.wakers, context);
            register(&mut state.wakers, context);
            Poll::Pending
        })
        .await
    }

    /// The number under which the run's record has this command; see `belljar logs --exec`.
    pub fn number(&self) -> Option<u32> {
        self.link.lock().tasks.get(&self.task)?.exec
    }

    fn outcome(&self, phase: &Phase) -> Result<Exit, Error> {
        match phase {
            Phase::Exited(exit) => Ok(*exit),
            Phase::Failed(failure) => {
                Err(Error::Exec { program: self.program.clone(), failure: failure.clone() })
            }
            Phase::Refused(error) => Err(error.clone().into()),
            Phase::Asked | Phase::Running => Err(Error::lost("it is still running")),
        }
    }

    /// The next piece of output, in the order of arrival; `None` after the last one. A command whose output
    /// is not read blocks once 64 KiB per stream are buffered.
    pub async fn next(&mut self) -> Option<Chunk> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Buffers more of the standard output before it is read: it carries files.
    pub(super) fn widen_stdout(&self) {
        let mut state = self.link.lock();
        let state = &mut *state;
        let Some(task) = state.tasks.get(&self.task) else { return };
        state.mux.widen(task.streams.stdout);
        self.link.flush();
    }

    /// Appends what has arrived of a stream already, without waiting.
    pub(super) fn append_arrived(&mut self, source: Source, bytes: &mut Vec<u8>) {
        let mut state = self.link.lock();
        let state = &mut *state;
        let Some(task) = state.tasks.get_mut(&self.task) else { return };
        for inbox in task.inboxes.iter_mut().filter(|inbox| inbox.source == source) {
            let mut count = 0;
            for (_, chunk) in inbox.chunks.drain(..) {
                count += chunk.len();
                bytes.extend_from_slice(&chunk);
            }
            state.mux.consumed(inbox.stream, count);
        }
        self.link.flush();
    }

    fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Chunk>> {
        let mut state = self.link.lock();
        let gone = state.check().is_err();
        let Some(task) = state.tasks.get_mut(&self.task) else { return Poll::Ready(None) };
        if let Some((stream, chunk)) = task.pop_oldest(&self.separate) {
            state.mux.consumed(stream, chunk.bytes.len());
            drop(state);
            self.link.flush();
            return Poll::Ready(Some(chunk));
        }
        let mut rest = task.inboxes.iter().filter(|inbox| !self.separate.contains(&inbox.source));
        if task.is_over() || gone || rest.all(|inbox| inbox.ended) {
            return Poll::Ready(None);
        }
        register(&mut task.wakers, context);
        Poll::Pending
    }

    /// Standard output as a separate reader; `None` with a terminal, and the second time. [`Running::next`]
    /// leaves it out from then on.
    pub fn stdout(&mut self) -> Option<Reader> {
        self.reader(Source::Stdout)
    }

    pub fn stderr(&mut self) -> Option<Reader> {
        self.reader(Source::Stderr)
    }

    /// The output of a command with a terminal, as a separate reader.
    pub fn terminal(&mut self) -> Option<Reader> {
        self.reader(Source::Terminal)
    }

    fn reader(&mut self, source: Source) -> Option<Reader> {
        let state = self.link.lock();
        let inboxes = &state.tasks.get(&self.task)?.inboxes;
        let stream = inboxes.iter().find(|inbox| inbox.source == source)?.stream;
        if self.separate.contains(&source) {
            return None;
        }
        self.separate.push(source);
        Some(Reader { link: Arc::clone(&self.link), task: self.task, stream })
    }

    /// Standard input, or a terminal's keyboard; `None` where there is none, and the second time.
    pub fn stdin(&mut self) -> Option<Input> {
        let state = self.link.lock();
        let task = state.tasks.get(&self.task)?;
        if self.input_taken || !task.takes_input() || task.feeding {
            return None;
        }
        self.input_taken = true;
        let stream = task.streams.stdin;
        let is_terminal = task.inboxes.iter().any(|inbox| inbox.source == Source::Terminal);
        Some(Input { link: Arc::clone(&self.link), task: self.task, stream, is_terminal })
    }

    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        self.link.send(&ToSupervisor::Signal { task: self.task, signal })
    }

    pub fn resize(&self, rows: u16, columns: u16) -> Result<(), Error> {
        let size = WindowSize { rows, columns };
        self.link.send(&ToSupervisor::Resize { task: self.task, size })
    }

    /// Kills the command and everything it started, and waits for its end.
    pub async fn kill(&mut self) -> Result<Exit, Error> {
        if !self.is_over() {
            self.link.send(&ToSupervisor::Kill { task: self.task })?;
        }
        self.wait().await
    }

    fn is_over(&self) -> bool {
        self.link.lock().tasks.get(&self.task).is_none_or(|task| task.is_over())
    }

    /// Lets go of the command: it runs on, and its output streams stay open.
    ///
    /// Dropping the handle of a command that lives on would close its output.
    pub fn detach(self) {
        std::mem::forget(self);
    }

    /// Waits for the command's end. Unread output without a separate reader is dropped.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        poll_fn(|context| {
            let mut state = self.link.lock();
            drop_output(&mut state, self.task, &self.separate);
            let lost = state.check();
            let Some(task) = state.tasks.get_mut(&self.task) else {
                return Poll::Ready(lost.and(Err(gone())));
            };
            if task.is_over() {
                return Poll::Ready(self.outcome(&task.phase));
            }
            if let Err(error) = lost {
                return Poll::Ready(Err(error));
            }
            register(&mut task.wakers, context);
            drop(state);
            self.link.flush();
            Poll::Pending
        })
        .await
    }
}

fn gone() -> Error {
    Error::lost("the command is no longer known")
}

/// Acknowledges unread output, present and future, so that the command is not blocked.
fn drop_output(state: &mut State, task: u32, but: &[Source]) {
    let Some(task) = state.tasks.get_mut(&task) else { return };
    for inbox in task.inboxes.iter_mut().filter(|inbox| !but.contains(&inbox.source)) {
        inbox.taken = Delivery::Discarded;
        let count = inbox.chunks.drain(..).map(|(_, bytes)| bytes.len()).sum();
        state.mux.consumed(inbox.stream, count);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        let state = &mut *state;
        drop_output(state, self.task, &[]);
        let Some(task) = state.tasks.get_mut(&self.task) else { return };
        if task.is_over() {
            task.wake();
            state.tasks.remove(&self.task);
            return;
        }
        task.abandoned = true;
        task.wake();
        match self.bond {
            // The message is short, so it always fits; a lost connection kills the command too.
            Bond::EndsWithConnection => {
                task.feeding = false;
                task.feed.clear();
                let input = task.takes_input().then_some(task.streams.stdin);
                input.into_iter().for_each(|input| state.mux.end(input));
                drop(state.mux.send(&ToSupervisor::Kill { task: self.task }));
            }
            // Input that was given as a whole is still sent.
            Bond::LivesOn => {
                task.inboxes.iter().for_each(|inbox| state.mux.reset(inbox.stream));
            }
        }
        self.link.flush();
    }
}

/// One output stream of a command.
#[derive(Debug)]
pub struct Reader {
    link: Arc<Link>,
    task: u32,
    stream: u32,
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.link.lock();
        let lost = state.check();
        let aborted = |why: String| io::Error::new(io::ErrorKind::ConnectionAborted, why);
        let Some(task) = state.tasks.get_mut(&self.task).filter(|task| !task.abandoned) else {
            return Poll::Ready(Err(aborted("the command's handle was dropped".to_owned())));
        };
        let over = task.is_over();
        let Some(inbox) = task.inbox(self.stream) else { return Poll::Ready(Ok(())) };
        if let Some((_, bytes)) = inbox.chunks.front_mut() {
            let count = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..count]);
            bytes.drain(..count);
            if bytes.is_empty() {
                inbox.chunks.pop_front();
            }
            state.mux.consumed(self.stream, count);
            drop(state);
            self.link.flush();
            return Poll::Ready(Ok(()));
        }
        if inbox.ended || over {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = lost {
            return Poll::Ready(Err(aborted(error.to_string())));
        }
        register(&mut task.wakers, context);
        Poll::Pending
    }
}

impl Drop for Reader {
    /// The command runs on; its output on this stream is dropped.
    fn drop(&mut self) {
        let mut state = self.link.lock();
        let Some(task) = state.tasks.get_mut(&self.task) else { return };
        let Some(inbox) = task.inbox(self.stream) else { return };
        inbox.taken = Delivery::Discarded;
        let count = inbox.chunks.drain(..).map(|(_, bytes)| bytes.len()).sum();
        state.mux.consumed(self.stream, count);
        self.link.flush();
    }
}

/// Writes to the command's standard input. Shutting it down or dropping it ends the input; dropping a
/// terminal's input leaves it open.
#[derive(Debug)]
pub struct Input {
    link: Arc<Link>,
    task: u32,
    stream: u32,
    is_terminal: bool,
}

impl AsyncWrite for Input {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.link.lock();
        let broken = |why: &str| io::Error::new(io::ErrorKind::BrokenPipe, why.to_owned());
        if let Err(error) = state.check() {
            return Poll::Ready(Err(broken(&error.to_string())));
        }
        let task = state.tasks.get(&self.task);
        if task.is_none_or(|task| task.is_over() || task.input_refused || task.abandoned) {
            return Poll::Ready(Err(broken("the command has closed its input")));
        }
        let taken = state.mux.send_data(self.stream, bytes);
        if taken == 0 && !bytes.is_empty() {
            register(&mut state.writers, context);
            return Poll::Pending;
        }
        drop(state);
        self.link.flush();
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // the connection's task sends what was accepted
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Input {
    fn end(&self) {
        self.link.lock().mux.end(self.stream);
        self.link.flush();
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if !self.is_terminal {
            self.end();
        }
    }
}
