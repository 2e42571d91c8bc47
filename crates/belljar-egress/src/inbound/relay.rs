//! Carries bytes both ways between the inside and a host, counted before they pass.

use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::io::buffer_pool::Buffers;
use crate::io::stream::{Stream, is_passing};
use crate::policy::Denial;
use crate::upstream::ticket::{Flow, Ticket};

/// Without a byte either way.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The same, once one side has said that it will send no more.
const IDLE_HALF_CLOSED: Duration = Duration::from_secs(5 * 60);
/// Buffers that one direction passes on before the others get their turn.
const IN_ONE_GO: usize = 16;

/// Why it ended before both sides had said all they had to say.
#[derive(Debug)]
pub(crate) enum End {
    /// Whoever asked is gone.
    Inside,
    /// What comes from outside broke off.
    Outside(io::Error),
    /// What comes from outside came to its end, and the rest of what was sent there was not taken.
    NotTaken(io::Error),
    Budget,
    Idle,
    /// Whoever asked had to speak first, and did not.
    Silent,
    Denied(Denial),
}

/// What came first from inside, once it was looked at.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: bool,
}

/// Both sides of a connection, and what is known about it.
pub(crate) struct Relay<'a> {
    pub(crate) inner: &'a Stream,
    pub(crate) outer: &'a Stream,
    pub(crate) buffers: &'a Buffers,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    ticket: &'a mut Ticket,
    moved: Instant,
    idle: Duration,
    outside: Outside,
}

/// The kernel tells of a reset once: if whoever writes hears of it, whoever reads sees a plain end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    There,
    Reset,
}

#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

enum Drained {
    /// Nothing more at the moment.
    Empty,
    /// It is others' turn.
    More,
    Ended,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        inner: &'a Stream,
        outer: &'a Stream,
        buffers: &'a Buffers,
        ticket: &'a mut Ticket,
    ) -> Self {
        let state = Mutex::new(State {
            ticket,
            moved: Instant::now(),
            idle: IDLE,
            outside: Outside::There,
        });
        Self { inner, outer, buffers, state }
    }

    /// Returns when both sides have ended, or when it is over for another reason. `opening` gives what passes
    /// first to the outside; what comes from there does not wait for it, since some servers speak first.
    pub(crate) async fn run(
        &self,
        opening: impl Future<Output = Result<Opening, End>>,
    ) -> Result<(), End> {
        // A server that takes no more may still have something to say, such as why.
        let outward = async {
            match self.outward(opening).await {
                Err(End::NotTaken(error)) => {
                    self.hurry();
                    if error.kind() == io::ErrorKind::ConnectionReset {
                        self.state().outside = Outside::Reset;
                    }
                    Ok(Some(error))
                }
                ended => ended.map(|()| None),
            }
        };
        tokio::select! {
            ended = async { tokio::try_join!(outward, self.pump(Direction::In)) } => match ended? {
                (None, ()) => Ok(()),
                (Some(error), ()) => Err(End::NotTaken(error)),
            },
            () = self.until_idle() => Err(End::Idle),
        }
    }

    async fn outward(
        &self,
        opening: impl Future<Output = Result<Opening, End>>,
    ) -> Result<(), End> {
        let Opening { bytes, ended } = opening.await?;
        self.pass(Direction::Out, &bytes).await?;
        drop(bytes);
        if ended {
            self.half_close(Direction::Out);
            return Ok(());
        }
        self.pump(Direction::Out).await
    }

    async fn pump(&self, direction: Direction) -> Result<(), End> {
        let from = self.from(direction);
        loop {
            from.readable().await.map_err(|error| self.broke_reading(direction, error))?;
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

    /// Passes on what is there. The buffer is held no longer.
    async fn drain(&self, direction: Direction) -> Result<Drained, End> {
        let mut buffer = self.buffers.take();
        for _ in 0..IN_ONE_GO {
            match self.from(direction).try_read(&mut buffer) {
                Ok(0) => return Ok(Drained::Ended),
                Ok(got) => self.pass(direction, &buffer[..got]).await?,
                Err(error) if is_passing(&error) => return Ok(Drained::Empty),
                Err(error) => return Err(self.broke_reading(direction, error)),
            }
        }
        Ok(Drained::More)
    }

    async fn pass(&self, direction: Direction, bytes: &[u8]) -> Result<(), End> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.count(direction, bytes.len() as u64) == Flow::Stops {
            return Err(End::Budget);
        }
        let (to, broke): (_, fn(io::Error) -> End) = match direction {
            Direction::Out => (self.outer, End::NotTaken),
            Direction::In => (self.inner, |_| End::Inside),
        };
        to.write_everything(bytes).await.map_err(broke)
    }

    fn count(&self, direction: Direction, bytes: u64) -> Flow {
        let mut state = self.state();
        state.moved = Instant::now();
        match direction {
            Direction::Out => state.ticket.count_out(bytes),
            Direction::In => state.ticket.count_in(bytes),
        }
    }

    /// One direction is over, so the other is not waited for as long.
    fn hurry(&self) {
        let mut state = self.state();
        state.moved = Instant::now();
        state.idle = IDLE_HALF_CLOSED;
    }

    fn half_close(&self, direction: Direction) {
        self.hurry();
        match direction {
            Direction::Out => self.outer.end_writing(),
            Direction::In => self.inner.end_writing(),
        }
    }

    fn check_end(&self, direction: Direction) -> Result<(), End> {
        match (direction, self.state().outside) {
            (Direction::In, Outside::Reset) => {
                Err(End::Outside(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Ok(()),
        }
    }

    async fn until_idle(&self) {
        loop {
            let (due, now) = (self.idle_at(), Instant::now());
            if due <= now {
                return;
            }
            // Looked at again after the shorter time, which may apply by then.
            sleep_until(due.min(now + IDLE_HALF_CLOSED)).await;
        }
    }

    fn idle_at(&self) -> Instant {
        let state = self.state();
        state.moved + state.idle
    }

    fn from(&self, direction: Direction) -> &'a Stream {
        match direction {
            Direction::Out => self.inner,
            Direction::In => self.outer,
        }
    }

    fn broke_reading(&self, direction: Direction, error: io::Error) -> End {
        match direction {
            Direction::Out => End::Inside,
            Direction::In => End::Outside(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
