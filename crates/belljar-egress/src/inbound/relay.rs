//! Relays bytes in both directions between client and host, and counts them before they are sent.

use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::io::buffer_pool::BufferPool;
use crate::io::stream::{Stream, is_retryable};
use crate::limits::IDLE_TIMEOUT;
use crate::policy::Denial;
use crate::upstream::ticket::{Flow, Ticket};

/// As [`IDLE_TIMEOUT`], once one side is closed.
const HALF_CLOSED_IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Reads per direction before other tasks get their turn.
const READS_PER_TURN: usize = 16;

/// Why the relay ended before both sides were closed.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// The client is gone.
    ClientGone,
    /// Reading from the host failed.
    UpstreamBroken(io::Error),
    /// The host closed its side, and the rest of what was sent to it was not accepted.
    WriteFailed(io::Error),
    Budget,
    Idle,
    /// The client had to send first, and did not.
    TimedOut,
    Denied(Denial),
}

/// The first bytes from the client, after they were checked.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: bool,
}

/// Both sides of a connection and its state.
pub(crate) struct Relay<'a> {
    pub(crate) client: &'a Stream,
    pub(crate) host: &'a Stream,
    pub(crate) buffers: &'a BufferPool,
    state: Mutex<RelayState<'a>>,
}

struct RelayState<'a> {
    ticket: &'a mut Ticket,
    last_activity: Instant,
    idle_timeout: Duration,
    upstream_state: UpstreamState,
}

/// The kernel reports a reset once: if the writer gets it, the reader sees a plain end-of-stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UpstreamState {
    Connected,
    Reset,
}

#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

enum Drained {
    /// Nothing to read at the moment.
    Empty,
    /// Other tasks get their turn.
    More,
    Ended,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        client: &'a Stream,
        host: &'a Stream,
        buffers: &'a BufferPool,
        ticket: &'a mut Ticket,
    ) -> Self {
        let state = Mutex::new(RelayState {
            ticket,
            last_activity: Instant::now(),
            idle_timeout: IDLE_TIMEOUT,
            upstream_state: UpstreamState::Connected,
        });
        Self { client, host, buffers, state }
    }

    /// Returns when both sides are closed, or on the first failure. `first_bytes` are sent to the host first; data
    /// from the host does not wait for them, since some servers send first.
    pub(crate) async fn run(
        &self,
        first_bytes: impl Future<Output = Result<FirstBytes, RelayEnd>>,
    ) -> Result<(), RelayEnd> {
        // A server that accepts no more may still send something, such as the reason.
        let pump_out = async {
            match self.pump_out(first_bytes).await {
                Err(RelayEnd::WriteFailed(error)) => {
                    self.shorten_idle_timeout();
                    if error.kind() == io::ErrorKind::ConnectionReset {
                        self.state().upstream_state = UpstreamState::Reset;
                    }
                    Ok(Some(error))
                }
                ended => ended.map(|()| None),
            }
        };
        tokio::select! {
            ended = async { tokio::try_join!(pump_out, self.pump(Direction::In)) } => match ended? {
                (None, ()) => Ok(()),
                (Some(error), ()) => Err(RelayEnd::WriteFailed(error)),
            },
            () = self.wait_until_idle() => Err(RelayEnd::Idle),
        }
    }

    async fn pump_out(
        &self,
        first_bytes: impl Future<Output = Result<FirstBytes, RelayEnd>>,
    ) -> Result<(), RelayEnd> {
        let FirstBytes { bytes, ended } = first_bytes.await?;
        self.pass(Direction::Out, &bytes).await?;
        drop(bytes);
        if ended {
            self.half_close(Direction::Out);
            return Ok(());
        }
        self.pump(Direction::Out).await
    }

    async fn pump(&self, direction: Direction) -> Result<(), RelayEnd> {
        let from = self.from(direction);
        loop {
            from.readable().await.map_err(|error| self.read_error(direction, error))?;
            match self.drain(direction).await? {
                Drained::Ended => {
                    self.check_end(direction)?;
                    self.half_close(direction);
                    return Ok(());
                }
                Drained::Empty => {}
                Drained::More => tokio::task::yield_now().await,
            }
        }
    }

    /// Passes on what can be read now. The buffer is released afterwards.
    async fn drain(&self, direction: Direction) -> Result<Drained, RelayEnd> {
        let mut buffer = self.buffers.take();
        for _ in 0..READS_PER_TURN {
            match self.from(direction).try_read(&mut buffer) {
                Ok(0) => return Ok(Drained::Ended),
                Ok(got) => self.pass(direction, &buffer[..got]).await?,
                Err(error) if is_retryable(&error) => return Ok(Drained::Empty),
                Err(error) => return Err(self.read_error(direction, error)),
            }
        }
        Ok(Drained::More)
    }

    async fn pass(&self, direction: Direction, bytes: &[u8]) -> Result<(), RelayEnd> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.count(direction, bytes.len() as u64) == Flow::Stops {
            return Err(RelayEnd::Budget);
        }
        let (to, on_error): (_, fn(io::Error) -> RelayEnd) = match direction {
            Direction::Out => (self.host, RelayEnd::WriteFailed),
            Direction::In => (self.client, |_| RelayEnd::ClientGone),
        };
        to.write_all_bytes(bytes).await.map_err(on_error)
    }

    fn count(&self, direction: Direction, bytes: u64) -> Flow {
        let mut state = self.state();
        state.last_activity = Instant::now();
        match direction {
            Direction::Out => state.ticket.count_out(bytes),
            Direction::In => state.ticket.count_in(bytes),
        }
    }

    /// One direction is closed, so the other gets a shorter idle timeout.
    fn shorten_idle_timeout(&self) {
        let mut state = self.state();
        state.last_activity = Instant::now();
        state.idle_timeout = HALF_CLOSED_IDLE_TIMEOUT;
    }

    fn half_close(&self, direction: Direction) {
        self.shorten_idle_timeout();
        match direction {
            Direction::Out => self.host.shutdown_write(),
            Direction::In => self.client.shutdown_write(),
        }
    }

    fn check_end(&self, direction: Direction) -> Result<(), RelayEnd> {
        match (direction, self.state().upstream_state) {
            (Direction::In, UpstreamState::Reset) => {
                Err(RelayEnd::UpstreamBroken(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Ok(()),
        }
    }

    async fn wait_until_idle(&self) {
        loop {
            let (due, now) = (self.idle_deadline(), Instant::now());
            if due <= now {
                return;
            }
            // Checked again after the shorter timeout, which may apply by then.
            sleep_until(due.min(now + HALF_CLOSED_IDLE_TIMEOUT)).await;
        }
    }

    fn idle_deadline(&self) -> Instant {
        let state = self.state();
        state.last_activity + state.idle_timeout
    }

    fn from(&self, direction: Direction) -> &'a Stream {
        match direction {
            Direction::Out => self.client,
            Direction::In => self.host,
        }
    }

    fn read_error(&self, direction: Direction, error: io::Error) -> RelayEnd {
        match direction {
            Direction::Out => RelayEnd::ClientGone,
            Direction::In => RelayEnd::UpstreamBroken(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, RelayState<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
