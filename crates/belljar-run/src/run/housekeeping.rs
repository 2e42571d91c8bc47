//! Cleans up after dead runs and applies `[retention]`, without delaying a run.
//!
//! What dead and removed runs left may have been made by an enemy, and take long to remove. So it is done
//! by a thread, which starts when the command is released, and is waited for only so long. Cut short, it is
//! finished by a later command.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use belljar_spec::{Retention, RunId};

use super::reconcile::{ReconcileError, Reconciled, reconcile};
use belljar_record::home::Home;

/// How long the end of a run waits for it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Housekeeping(Option<Receiver<Result<Reconciled, ReconcileError>>>);

impl Housekeeping {
    /// Nothing is begun where there is nothing to do: a thread costs as much as a tenth of a start.
    pub(super) fn begin(home: &Home, own: &RunId) -> Self {
        if !is_needed(home, own) {
            return Self(None);
        }
        let home = home.clone();
        Self(beside(move || reconcile(&home)))
    }

    /// What was found, if that is known by now.
    pub(super) fn finish(self) -> Option<Result<Reconciled, ReconcileError>> {
        self.0?.recv_timeout(WAIT_TIMEOUT).ok()
    }
}

/// Removes what is not to be kept of runs of this name, as far as that goes now.
pub(super) fn retain(home: &Home, name: Option<String>, retention: Retention) {
    let home = home.clone();
    let done = beside(move || crate::retention::apply_retention(&home, &name, retention));
    if let Some(done) = done {
        let _ = done.recv_timeout(WAIT_TIMEOUT); // what is left over goes with a later run
    }
}

/// `None`: there is no thread to be had, and a later command does it.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<Receiver<T>> {
    let (sender, receiver) = channel();
    let thread = thread::Builder::new().name("housekeeping".to_owned());
    let begun = thread.spawn(move || {
        let _ = sender.send(work()); // fails only if no one waits for it any more
    });
    begun.is_ok().then_some(receiver)
}

fn is_needed(home: &Home, own: &RunId) -> bool {
    let names = |directory| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_other = |name: &str| !name.starts_with(own.as_str());
    names(home.live()).any(|entry| entry.file_name().to_str().is_none_or(is_other))
        || names(home.trash()).next().is_some()
        || names(home.placeholders()).any(|entry| entry.file_name().to_str().is_none_or(is_other))
        || names(home.applying()).nth(1).is_some() // the lock alone is nothing to do
        || belljar_backend::may_have_orphans()
}
