//! A run by its record: its changes, its events, its output. Live or ended, started by this program or not.

mod branch;
mod events;
mod follow;
mod logs;
pub mod output;
pub mod review;

use std::path::{Path, PathBuf};

use belljar_record::home::Home;
use belljar_record::store::{self, RunInfo};
use belljar_spec::RunId;

use crate::sandbox::{Error, RunOutput};
pub use branch::{Checkpoint, ForkOptions};
pub use events::Events;
pub use logs::{LogPiece, Logs};
pub use review::{ApplyOptions, ApplyReport, ApplyTree, Diff, DryRun, TreeChanges};

/// How far a stream of events or output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// To the end of what is recorded now.
    UntilNow,
    /// To the end of the run.
    UntilEnd,
}

/// A recorded run. Nothing ends when this is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use belljar::{ApplyOptions, Sandbox, spec::MountMode};
///
/// let project = tempfile::tempdir()?;
/// std::fs::write(project.path().join("a.txt"), "old\n")?;
/// let done = Sandbox::builder()
///     .workspace(project.path(), MountMode::Overlay)
///     .run(["sh", "-c", "echo new > a.txt; echo more > b.txt"])
///     .await?;
/// let run = done.record();
/// assert_eq!(run.diff().await?.changes().count(), 2);
/// assert_eq!(std::fs::read_to_string(project.path().join("a.txt"))?, "old\n");
///
/// let report = run.apply(ApplyOptions::default().path("a.txt")).await?;
/// assert_eq!(report.changes, 1);
/// assert_eq!(std::fs::read_to_string(project.path().join("a.txt"))?, "new\n");
/// run.discard().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    home: PathBuf,
    run: RunId,
}

impl RecordedRun {
    pub(crate) fn new(home: PathBuf, run: RunId) -> Self {
        Self { home, run }
    }

    /// Finds a run in the caller's home by its id, the head or tail of one, or its name.
    pub async fn open(query: &str) -> Result<Self, Error> {
        let env = std::env::vars_os().collect();
        Self::find(query, move || Home::open(&env)).await
    }

    /// The same, in this home.
    pub async fn open_in(home: &Path, query: &str) -> Result<Self, Error> {
        let path = home.to_owned();
        Self::find(query, move || Home::open_at(path)).await
    }

    async fn find(
        query: &str,
        open: impl FnOnce() -> Result<Home, belljar_record::HomeError> + Send + 'static,
    ) -> Result<Self, Error> {
        let query = query.to_owned();
        blocking(move || {
            let home = open()?;
            let run = store::find(&home, &query)?.id;
            Ok(Self::new(home.path().to_owned(), run))
        })
        .await
    }

    pub fn id(&self) -> RunId {
        self.run
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// State, exit, times and usage, as `belljar ps` lists them.
    pub async fn info(&self) -> Result<RunInfo, Error> {
        self.read(|home, run| Ok(store::find(home, run.as_str())?)).await
    }

    /// Reads or writes files of the home, which may take a while.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Home, &RunId) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Self { home, run } = self.clone();
        blocking(move || work(&Home::open_at(home)?, &run)).await
    }
}

impl RunOutput {
    /// The record of the run: its events, its output, its changes.
    pub fn record(&self) -> RecordedRun {
        RecordedRun::new(self.home.clone(), self.run)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::io("read the record")(std::io::Error::other(error)))?
}
