//! Reads a record piece by piece while it grows, without blocking the caller's thread.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_record::home::Home;
use belljar_record::store::{Life, life};

use super::{Follow, RecordedRun, blocking};
use crate::sandbox::Error;

/// How often a live record is read again. It is written every 50 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reads items of a record. Called on a thread that may block.
pub(super) trait FollowSource: Send + Sized + 'static {
    type Item: Send + 'static;

    /// The next items, a bounded number of them; none if nothing more is recorded so far.
    fn read(&mut self) -> Result<Vec<Self::Item>, Error>;
}

type Batch<S> = Result<(S, Vec<<S as FollowSource>::Item>, More), Error>;

/// Whether there can be more after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Yes,
    No,
}

enum FollowState<S: FollowSource> {
    Idle(S),
    Reading(Pin<Box<dyn Future<Output = Batch<S>> + Send>>),
    Over,
}

/// Items of a record, in order.
pub(super) struct Following<S: FollowSource> {
    run: RecordedRun,
    follow: Follow,
    ready: VecDeque<S::Item>,
    state: FollowState<S>,
}

impl<S: FollowSource> Following<S> {
    pub(super) fn new(run: RecordedRun, follow: Follow, source: S) -> Self {
        Self { run, follow, ready: VecDeque::new(), state: FollowState::Idle(source) }
    }

    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<S::Item, Error>>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            match std::mem::replace(&mut self.state, FollowState::Over) {
                FollowState::Over => return Poll::Ready(None),
                FollowState::Idle(source) => {
                    let reading = read(self.run.clone(), self.follow, source);
                    self.state = FollowState::Reading(Box::pin(reading));
                }
                FollowState::Reading(mut reading) => match reading.as_mut().poll(context) {
                    Poll::Pending => {
                        self.state = FollowState::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(Ok((source, items, more))) => {
                        self.ready.extend(items);
                        if more == More::Yes {
                            self.state = FollowState::Idle(source);
                        }
                    }
                },
            }
        }
    }
}

/// Waits until there is something to return, or nothing more can come.
async fn read<S: FollowSource>(run: RecordedRun, follow: Follow, mut source: S) -> Batch<S> {
    loop {
        let RecordedRun { home, run } = run.clone();
        let (back, items, live) = blocking(move || {
            // Checked before reading, so that the last items are not missed.
            let live = matches!(life::of(&Home::open_at(home)?, &run), Life::Live(_));
            let items = source.read()?;
            Ok((source, items, live))
        })
        .await?;
        source = back;
        if !items.is_empty() {
            return Ok((source, items, More::Yes));
        }
        if !live || follow == Follow::UntilNow {
            return Ok((source, items, More::No));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
