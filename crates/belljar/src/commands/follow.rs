//! Connects the caller's terminal to a running command: output, input, signals and the window size.
//!
//! A thread writes the output, because it may block; signals are handled meanwhile.

use std::io;
use std::os::fd::BorrowedFd;

use belljar::spec::Exit;
use belljar::{Chunk, Collected, Error, Input, Running, Source};
use belljar_run::raw_terminal::RawTerminal;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::descriptor::{is_closed, write_all};
use super::terminal;
use crate::report;

const INT: i32 = 2;
const PIPE: i32 = 13;
const TERM: i32 = 15;
const SIGNALLED: i32 = belljar::spec::EXIT_SIGNAL_BASE;
/// ctrl-p and ctrl-q: detach from the command.
const DETACH_FIRST: u8 = 0x10;
const DETACH_SECOND: u8 = 0x11;
const INPUT_BUFFER: usize = 16 << 10;
const KILL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// How this process is related to the command; decides what a signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The command ends when this process does.
    Owner,
    /// The command is the main command of a sandbox that is kept.
    Keeper,
    /// The command outlives this process.
    Viewer,
}

/// How the caller's standard input reaches the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyboard {
    None,
    Passed,
    /// Raw, with window sizes.
    Terminal,
}

/// How following the command ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Followed {
    Exited(Exit),
    /// This process killed the command, and exits with this code.
    Ended(i32),
    /// The command runs on; this process exits with this code.
    Detached(i32),
}

impl Followed {
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Exited(exit) => exit.process_code(),
            Self::Ended(code) | Self::Detached(code) => code,
        }
    }
}

/// Where the command's output goes.
#[derive(Debug)]
pub(super) enum OutputTarget {
    /// To this process's own streams.
    Passed,
    Captured {
        stdout: Collected,
        stderr: Collected,
    },
}

pub(super) async fn follow(
    mut running: Running,
    role: Role,
    keyboard: Keyboard,
) -> Result<Followed, Error> {
    let followed = follow_into(&mut running, role, keyboard, &mut OutputTarget::Passed).await;
    if let Ok(Followed::Detached(_)) = followed {
        running.detach();
    }
    followed
}

pub(super) async fn follow_into(
    running: &mut Running,
    role: Role,
    keyboard: Keyboard,
    output: &mut OutputTarget,
) -> Result<Followed, Error> {
    let mut signals = Signals::new()
        .map_err(|error| Error::Io { what: "listen to signals".to_owned(), error })?;
    let raw = (keyboard == Keyboard::Terminal).then(|| RawTerminal::enter(rustix::stdio::stdin()));
    let (detach, detached) = oneshot::channel();
    let mut detached = Some(detached);
    let keys = match (role, keyboard) {
        (Role::Viewer, Keyboard::Terminal) => Some(DetachKeys { sender: detach, first: false }),
        _ => None,
    };
    if let Some(input) = running.stdin().filter(|_| keyboard != Keyboard::None) {
        match never_blocks(rustix::stdio::stdin()) {
            true => tokio::spawn(forward_file(input)),
            false => tokio::spawn(forward_input(input, read_stdin(), keys)),
        };
    }
    let mut follower = Follower { signals: 0, role, output };
    let followed = follower.until_end(running, &mut signals, &mut detached).await;
    drop(raw);
    followed
}

/// Returns when the detach keys were pressed; never where they are not watched.
async fn detach_pressed(detached: &mut Option<oneshot::Receiver<()>>) {
    if let Some(keys) = detached
        && keys.await.is_ok()
    {
        return;
    }
    *detached = None;
    std::future::pending().await
}

enum Step {
    Output(Option<Chunk>),
    Over(Result<Exit, Error>),
}

#[derive(Debug)]
struct Follower<'a> {
    /// How many signals have asked the command to end.
    signals: u32,
    role: Role,
    output: &'a mut OutputTarget,
}

impl Follower<'_> {
    async fn until_end(
        &mut self,
        running: &mut Running,
        signals: &mut Signals,
        detached: &mut Option<oneshot::Receiver<()>>,
    ) -> Result<Followed, Error> {
        let mut writing: Option<JoinHandle<io::Result<()>>> = None;
        let mut to = Source::Stdout;
        let mut output_ended = false;
        let mut stderr_closed = false;
        loop {
            tokio::select! {
                signal = signals.next() => {
                    if let Some(followed) = self.on_signal(running, signal).await? {
                        return Ok(followed);
                    }
                }
                () = detach_pressed(detached) => return Ok(Followed::Detached(0)),
                written = finished(&mut writing), if writing.is_some() => {
                    writing = None;
                    match written {
                        Ok(()) => {}
                        Err(_) if to == Source::Stderr => stderr_closed = true,
                        Err(error) => return Ok(self.on_closed(running, &error).await),
                    }
                }
                step = next(running, output_ended), if writing.is_none() => match step {
                    Step::Output(None) => output_ended = true,
                    Step::Output(Some(chunk)) if chunk.source == Source::Stderr && stderr_closed => {}
                    Step::Output(Some(chunk)) => match self.output {
                        OutputTarget::Captured { stdout, stderr } => match chunk.source {
                            Source::Stdout | Source::Terminal => stdout.push(&chunk.bytes),
                            Source::Stderr => stderr.push(&chunk.bytes),
                        },
                        OutputTarget::Passed => {
                            to = chunk.source;
                            writing = Some(tokio::task::spawn_blocking(move || write(&chunk)));
                        }
                    },
                    Step::Over(exit) => return exit.map(Followed::Exited),
                },
            }
        }
    }

    async fn on_signal(
        &mut self,
        running: &mut Running,
        signal: i32,
    ) -> Result<Option<Followed>, Error> {
        if signal == WINCH {
            let size = terminal::size();
            running.resize(size.rows, size.columns)?;
            return Ok(None);
        }
        self.signals += 1;
        let interrupts = matches!(signal, INT | QUIT);
        match self.role {
            Role::Viewer if !interrupts || self.signals > 1 => {
                return Ok(Some(Followed::Detached(0)));
            }
            Role::Owner if !interrupts || self.signals > 1 => {}
            Role::Keeper if self.signals > 1 => {}
            Role::Keeper if !interrupts => {
                running.signal(TERM)?;
                return Ok(None);
            }
            Role::Owner | Role::Keeper | Role::Viewer => {
                running.signal(signal)?;
                return Ok(None);
            }
        }
        let ended = end(running).await;
        let code = match ended {
            Some(exit) if interrupts => exit.process_code(),
            _ => SIGNALLED + signal,
        };
        Ok(Some(Followed::Ended(code)))
    }

    /// The reader of our output has gone, as with `| head`.
    async fn on_closed(&self, running: &mut Running, error: &io::Error) -> Followed {
        if !is_closed(error) {
            report::eprintln(&format!("error: cannot write the command's output: {error}\r"));
        }
        match self.role {
            Role::Viewer => return Followed::Detached(SIGNALLED + PIPE),
            Role::Owner | Role::Keeper => drop(end(running).await),
        }
        Followed::Ended(SIGNALLED + PIPE)
    }
}

/// Kills the command with everything it started. A supervisor that does not respond in time does it when
/// this connection closes.
async fn end(running: &mut Running) -> Option<Exit> {
    tokio::time::timeout(KILL_TIMEOUT, running.kill()).await.ok()?.ok()
}

async fn next(running: &mut Running, output_ended: bool) -> Step {
    if output_ended { Step::Over(running.wait().await) } else { Step::Output(running.next().await) }
}

async fn finished(writing: &mut Option<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    match writing {
        Some(handle) => handle.await.map_err(io::Error::other)?,
        None => Ok(()),
    }
}

fn write(chunk: &Chunk) -> io::Result<()> {
    match chunk.source {
        Source::Stderr => write_all(rustix::stdio::stderr(), &chunk.bytes),
        Source::Stdout | Source::Terminal => write_all(rustix::stdio::stdout(), &chunk.bytes),
    }
}

/// Whether a read returns at once, whatever others do: from a file, and from `/dev/null`.
fn never_blocks(input: BorrowedFd<'_>) -> bool {
    use rustix::fs::{FileType, fstat, makedev};
    fstat(input).is_ok_and(|stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => true,
        FileType::CharacterDevice => stat.st_rdev == makedev(1, 3),
        _ => false,
    })
}

/// Without a thread, which would take longer than most commands.
async fn forward_file(mut input: Input) {
    let mut buffer = vec![0; INPUT_BUFFER];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => break,
            Ok(count) if input.write_all(&buffer[..count]).await.is_err() => return,
            Ok(_) => {}
        }
    }
    let _ = input.shutdown().await;
}

/// Reads standard input in a thread: it may be a pipe or a terminal.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(2);
    std::thread::spawn(move || {
        let mut buffer = [0; INPUT_BUFFER];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receiver
}

async fn forward_input(
    mut input: Input,
    mut stdin: mpsc::Receiver<Vec<u8>>,
    mut keys: Option<DetachKeys>,
) {
    while let Some(mut bytes) = stdin.recv().await {
        if let Some(watching) = &mut keys
            && watching.scan(&mut bytes) == Pressed::Yes
        {
            if let Some(watching) = keys.take() {
                let _ = watching.sender.send(()); // fails if the command has ended meanwhile
            }
            // Dropping it would send the command the end of its input.
            return std::mem::forget(input);
        }
        if input.write_all(&bytes).await.is_err() {
            return; // the command reads no more
        }
    }
    let _ = input.shutdown().await;
}

#[derive(Debug)]
struct DetachKeys {
    sender: oneshot::Sender<()>,
    /// The first of the two keys was the last byte.
    first: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Pressed {
    Yes,
    No,
}

impl DetachKeys {
    /// Removes the detach keys from the input; the first key is held back until the next byte arrives.
    fn scan(&mut self, bytes: &mut Vec<u8>) -> Pressed {
        let mut passed = Vec::with_capacity(bytes.len() + 1);
        for byte in bytes.drain(..) {
            if self.first && byte == DETACH_SECOND {
                return Pressed::Yes;
            }
            if self.first {
                passed.push(DETACH_FIRST);
            }
            self.first = byte == DETACH_FIRST;
            if !self.first {
                passed.push(byte);
            }
        }
        *bytes = passed;
        Pressed::No
    }
}

const QUIT: i32 = 3;
const HUP: i32 = 1;
const WINCH: i32 = 28;

/// Returns once, when the terminal has hung up.
async fn hung_up(gone: &mut Option<oneshot::Receiver<()>>) {
    let is_gone = match gone {
        Some(receiver) => receiver.await.is_ok(),
        None => false,
    };
    *gone = None;
    if !is_gone {
        std::future::pending().await
    }
}

struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
    window: Signal,
    /// Reports that the caller's terminal has hung up: one that controls no session sends no signal.
    gone: Option<oneshot::Receiver<()>>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            window: signal(SignalKind::window_change())?,
            gone: terminal::watch(),
        })
    }

    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => INT,
            _ = self.quit.recv() => QUIT,
            _ = self.terminate.recv() => TERM,
            _ = self.hangup.recv() => HUP,
            () = hung_up(&mut self.gone) => HUP,
            _ = self.window.recv() => WINCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> DetachKeys {
        DetachKeys { sender: oneshot::channel().0, first: false }
    }

    #[test]
    fn only_the_two_keys_together_detach() {
        let mut keys = keys();
        let mut pass = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            (keys.scan(&mut bytes), bytes)
        };
        assert_eq!(pass(b"a\x10b"), (Pressed::No, b"a\x10b".to_vec()));
        assert_eq!(pass(b"\x10"), (Pressed::No, Vec::new()), "held back");
        assert_eq!(pass(b"\x10"), (Pressed::No, b"\x10".to_vec()), "the first of two");
        assert_eq!(pass(b"\x11").0, Pressed::Yes);
        let mut keys = self::keys();
        assert_eq!(keys.scan(&mut b"ls\x10\x11".to_vec()), Pressed::Yes);
    }
}
