//! The events of a run's record as a stream.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_record::{EventReader, HomeKey};
use belljar_spec::Event;
use futures_core::Stream;

use super::follow::{FollowSource, Following};
use super::{Follow, RecordedRun};
use crate::sandbox::Error;

/// Events that are read at once.
const BATCH: usize = 64;

impl FollowSource for EventReader {
    type Item = Event;

    fn read(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        while events.len() < BATCH {
            match self.next()? {
                Some(event) => events.push(event),
                None => break,
            }
        }
        Ok(events)
    }
}

/// The events of a run, in order; see [`RecordedRun::events`]. Dropping it ends nothing.
pub struct Events(Following<EventReader>);

impl Events {
    /// `None` after the last event; after an error there are no more.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        poll_fn(|context| self.0.poll_next(context)).await
    }
}

impl Stream for Events {
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_next(context)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl RecordedRun {
    /// The events from the first one on. Each line must be one that this run's supervisor wrote; `belljar verify`
    /// checks the whole record.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), belljar::Error> {
    /// use belljar::{Follow, Sandbox, spec::EventKind};
    ///
    /// let done = Sandbox::builder().no_workspace().run(["true"]).await?;
    /// let mut events = done.record().events(Follow::UntilEnd).await?;
    /// let mut kinds = Vec::new();
    /// while let Some(event) = events.next().await {
    ///     kinds.push(event?.kind);
    /// }
    /// assert_eq!(kinds.first(), Some(&EventKind::RunStart));
    /// assert_eq!(kinds.last(), Some(&EventKind::RunStop));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn events(&self, follow: Follow) -> Result<Events, Error> {
        let reader = self
            .read(|home, run| {
                let key = HomeKey::load(home.path())?.for_run(run);
                Ok(EventReader::open(&home.run_dir(run))?.checked_with(key))
            })
            .await?;
        Ok(Events(Following::new(self.clone(), follow, reader)))
    }
}
