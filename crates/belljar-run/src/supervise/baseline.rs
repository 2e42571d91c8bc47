//! Takes down what a live run saw of the files that it changes, before somebody else changes them too.
//!
//! A thread of its own, as the one that watches the disk, and started as late: most runs are over by then, and
//! their end does the same.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belljar_spec::{LayeredTree, RunId};

use belljar_workspace::capture_live;

const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Between two looks, at least; one that takes long is repeated less often.
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
    Autorun { layers: Layers, at: Instant },
    Kept(#[allow(dead_code, reason = "dropping it ends the thread")] Keeper),
}

#[derive(Debug)]
pub(super) struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Baselines {
    pub(super) fn from(layers: Layers, begun: Instant) -> Self {
        match layers.trees.is_empty() {
            true => Self::None,
            false => Self::Autorun { layers, at: begun + FIRST_LOOK },
        }
    }

    pub(super) fn first_look(&self) -> Option<Instant> {
        match self {
            Self::Autorun { at, .. } => Some(*at),
            Self::None | Self::Kept(_) => None,
        }
    }

    pub(super) fn look(&mut self, now: Instant) {
        if let Self::Autorun { layers, at } = self
            && now >= *at
        {
            // Without a thread the end of the run has to do.
            *self = Keeper::start(layers.clone()).map_or(Self::None, Self::Kept);
        }
    }
}

impl Keeper {
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

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
