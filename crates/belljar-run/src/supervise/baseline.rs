//! Records the original of each file that a live run changes, before another process changes it too.
//!
//! In a thread that is started late, as the one that watches the disk: most runs are over by then, and the end of a
//! run does the same.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belljar_spec::{LayeredTree, RunId};

use super::SuperviseError;
use super::event_source::{EventSource, PollSet};
use belljar_workspace::capture_live;

const FIRST_CHECK: Duration = Duration::from_secs(2);
/// Between two passes, at least; one that takes long is repeated less often.
const PAUSE: Duration = Duration::from_secs(5);
const SHARE_OF_TIME: u32 = 20;

/// The layered trees of a run.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    pub(crate) run: RunId,
    pub(crate) directory: PathBuf,
    pub(crate) trees: Vec<LayeredTree>,
}

#[derive(Debug)]
pub(super) enum Baselines {
    None,
    Waiting { layers: Layers, at: Instant },
    Running(#[allow(dead_code, reason = "dropping it ends the thread")] BaselineThread),
}

#[derive(Debug)]
pub(super) struct BaselineThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Baselines {
    pub(super) fn from(layers: Layers, begun: Instant) -> Self {
        match layers.trees.is_empty() {
            true => Self::None,
            false => Self::Waiting { layers, at: begun + FIRST_CHECK },
        }
    }

    fn first_check(&self) -> Option<Instant> {
        match self {
            Self::Waiting { at, .. } => Some(*at),
            Self::None | Self::Running(_) => None,
        }
    }

    fn check(&mut self, now: Instant) {
        if let Self::Waiting { layers, at } = self
            && now >= *at
        {
            // Without a thread, the end of the run does it.
            *self = BaselineThread::start(layers.clone()).map_or(Self::None, Self::Running);
        }
    }
}

impl EventSource for Baselines {
    type Parts<'p> = ();
    type Event = Infallible;

    fn watch<'a>(&'a self, _: &mut PollSet<'a>) {}

    fn deadline(&self) -> Option<Instant> {
        self.first_check()
    }

    fn take_turn(&mut self, now: Instant, (): ()) -> Result<Vec<Infallible>, SuperviseError> {
        self.check(now);
        Ok(Vec::new())
    }
}

impl BaselineThread {
    fn start(layers: Layers) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("baseline".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let look = Instant::now();
                for tree in &layers.trees {
                    capture_live(&layers.directory, &layers.run, tree, &stopped);
                }
                thread::park_timeout(PAUSE.max(look.elapsed() * SHARE_OF_TIME));
            }
        });
        Some(Self { stop, thread: Some(thread.ok()?) })
    }
}

impl Drop for BaselineThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
