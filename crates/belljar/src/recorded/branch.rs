//! Starts a new run from a checkpoint of another: fork and resume.

use std::path::PathBuf;

use belljar_run::config::{self, ConfigError};
use belljar_run::lineage::lineage;
use belljar_run::run::{Ask, Extend, ResumeError, ResumeLock, ResumeMismatch, prepare_resume};
use belljar_spec::wire::control::{Bond, Keep, LaunchRequest, Streams, TakenCheckpoint};
use belljar_spec::{CheckpointReport, ResumeKind, RunId};

use super::RecordedRun;
use crate::sandbox::{Connector, Error, Sandbox, Supervisors};

/// A state of a run that another can start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub run: RunId,
    /// Counted from 1 in each run.
    pub number: u32,
    pub note: Option<String>,
    /// Paths in overlay trees that differ from the checkpoint before.
    pub changed: u64,
    pub report: CheckpointReport,
}

impl Checkpoint {
    pub(crate) fn new(run: RunId, taken: TakenCheckpoint, note: Option<String>) -> Self {
        let TakenCheckpoint { number, changed, report } = taken;
        Self { run, number, note, changed, report }
    }
}

/// How to start from a checkpoint. The default is the newest one.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    from: Option<u32>,
    name: Option<String>,
    executable: Option<PathBuf>,
    allow: Vec<ResumeMismatch>,
}

impl ForkOptions {
    /// The number of the checkpoint; 0 is the first state of the run.
    pub fn from(mut self, number: u32) -> Self {
        self.from = Some(number);
        self
    }

    /// The name of the new run. A resumed run keeps its name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The belljar executable. The default is that of [`crate::find_executable`].
    pub fn belljar(mut self, path: impl Into<PathBuf>) -> Self {
        self.executable = Some(path.into());
        self
    }

    /// Starts even if this has changed since the first start.
    pub fn allow(mut self, mismatch: ResumeMismatch) -> Self {
        self.allow.push(mismatch);
        self
    }
}

impl RecordedRun {
    /// The checkpoints that still exist, oldest first.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, Error> {
        self.read(|home, run| {
            let line = lineage(home, run).map_err(ResumeError::from)?;
            let kept = line.iterations.into_iter().filter(|one| one.kept);
            let checkpoint = |one: belljar_run::lineage::LineIteration| Checkpoint {
                run: one.run,
                number: one.report.iteration,
                note: one.report.message,
                changed: one.report.changed,
                report: one.report.checkpoint,
            };
            Ok(kept.map(checkpoint).collect())
        })
        .await
    }

    /// Starts a new run from a checkpoint of this one, which may be live. It has this run's settings, and counts
    /// anew. The values of its secrets are read again. Dropping the handle stops the new run.
    pub async fn fork(&self, options: ForkOptions) -> Result<Sandbox, Error> {
        self.start_from(ResumeKind::Fork, options).await
    }

    /// Continues the loop of an agent that has ended, after its last checkpoint; [`Sandbox::wait`] waits for its end.
    /// Dropping the handle stops the new run.
    pub async fn resume(&self, options: ForkOptions) -> Result<Sandbox, Error> {
        self.start_from(ResumeKind::Resume, options).await
    }

    async fn start_from(&self, kind: ResumeKind, options: ForkOptions) -> Result<Sandbox, Error> {
        let connector: Box<dyn Connector> = match options.executable.clone() {
            Some(path) => Box::new(Supervisors::with_executable(path)),
            None => Box::new(Supervisors::new()),
        };
        let (request, lock) = self.request(kind, options).await?;
        let sandbox = Sandbox::launch(&*connector, request).await;
        drop(lock); // the record of the new run exists by now
        sandbox
    }

    /// Reads the record, and the values of secrets.
    async fn request(
        &self,
        kind: ResumeKind,
        options: ForkOptions,
    ) -> Result<(LaunchRequest, ResumeLock), Error> {
        self.read(move |home, run| {
            let ForkOptions { from, name, allow, executable: _ } = options;
            let env = std::env::vars_os().collect();
            let (extend, prompt) = (Extend::default(), None);
            let ask = Ask { kind, run: *run, from, extend, allow, prompt, name };
            let resumed = prepare_resume(home, &ask, &env)?;
            let cwd = std::env::current_dir().map_err(Error::io("find the current directory"))?;
            let secrets =
                config::secret_values(&resumed.spec, &env, &cwd).map_err(ConfigError::from)?;
            let request = LaunchRequest {
                home: home.path().into(),
                spec: resumed.spec,
                keep: Keep::UntilStopped,
                bond: Bond::EndsWithConnection,
                streams: Streams::Unwatched,
                secrets,
                resumed_from: Some(Box::new(resumed.resumed_from)),
                chosen: None,
                ttl_ms: None,
            };
            Ok((request, resumed.lock))
        })
        .await
    }
}
