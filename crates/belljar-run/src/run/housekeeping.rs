//! Cleans up after dead runs and applies `[retention]`, without delaying a run.
//!
//! What dead and removed runs left may have been made by an enemy, and take long to remove. So it is done
//! by a thread, which starts when the command is released, and is waited for only so long. Cut short, it is
//! finished by a later command.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use belljar_spec::text::error_chain;
use belljar_spec::{Retention, RunId};

use super::reconcile::{ReconcileError, Reconciled, reconcile};
use belljar_record::home::Home;

/// How long the end of a run waits for it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs of which a start looks whether they are dead. With more of them, the end of the run looks at all.
const MAX_LOOKS: usize = 8;

/// When the records are compared with the liveness locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reconcile {
    /// There is nothing to do.
    No,
    /// While the command runs.
    Now,
    /// When the run has ended.
    AtEnd,
}

pub(super) struct Housekeeping {
    running: Option<Receiver<Result<Reconciled, ReconcileError>>>,
    reconcile: Reconcile,
}

impl Housekeeping {
    /// Nothing is begun where there is nothing to do: a thread costs as much as a tenth of a start.
    pub(super) fn begin(home: &Home, own: &RunId) -> Self {
        let reconcile_when = look(home, own);
        let running = match reconcile_when {
            Reconcile::Now => {
                let home = home.clone();
                beside(move || reconcile(&home))
            }
            Reconcile::No | Reconcile::AtEnd => None,
        };
        Self { running, reconcile: reconcile_when }
    }

    /// What was found, if that is known by now, and what the end of the run has to do.
    pub(super) fn finish(self) -> (Option<Result<Reconciled, ReconcileError>>, Reconcile) {
        let found = self.running.and_then(|running| running.recv_timeout(WAIT_TIMEOUT).ok());
        (found, self.reconcile)
    }
}

/// Removes what is not to be kept of runs of this name, and what dead runs left. Waits only so long.
pub(super) fn tidy_up(
    home: &Home,
    name: Option<String>,
    retention: Retention,
    reconcile_when: Reconcile,
) {
    let home = home.clone();
    let done = beside(move || {
        // What fails is tried again after the next run.
        if let Err(error) = crate::retention::apply_retention(&home, &name, retention) {
            tracing::debug!(error = %error_chain(&error), "retention was not applied");
        }
        if (reconcile_when == Reconcile::AtEnd || belljar_backend::may_have_orphans())
            && let Err(error) = reconcile(&home)
        {
            tracing::debug!(error = %error_chain(&error), "dead runs were not cleaned up");
        }
    });
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

fn look(home: &Home, own: &RunId) -> Reconcile {
    let names = |directory| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_other = |name: &str| !name.starts_with(own.as_str());
    let has_work = names(home.trash()).next().is_some()
        || names(home.placeholders()).any(|entry| entry.file_name().to_str().is_none_or(is_other))
        || names(home.applying()).nth(1).is_some(); // the lock alone is nothing to do
    if has_work {
        return Reconcile::Now;
    }
    // Beside each is its socket.
    let is_other_run = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| is_other(name) && !name.contains('.'))
    };
    let others: Vec<_> = names(home.live()).filter(is_other_run).take(MAX_LOOKS + 1).collect();
    let is_dead = |entry: &std::fs::DirEntry| !belljar_record::store::life::is_held(&entry.path());
    match () {
        () if others.iter().take(MAX_LOOKS).any(is_dead) => Reconcile::Now,
        () if others.len() > MAX_LOOKS => Reconcile::AtEnd,
        () => Reconcile::No,
    }
}
