//! Closes a run whose end is on disk: writes what listings are made from, gives the liveness lock up, tidies up.

use std::time::Duration;

use belljar_record::home::Home;
use belljar_record::{Outcome, RunIndex, ballast};
use belljar_spec::Retention;
use belljar_spec::text::error_chain;
use belljar_sys::background::{Side, exit_now, fork_to_background};

use super::super::housekeeping::{self, Reconcile};
use super::super::log::StoppedLog;
use super::super::run_dir::RunDir;

/// The process in the background is ended by then, and a later command does the rest.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(60);

/// Who closes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// This process, before clients are notified: what they look at then is finished.
    Here,
    /// A forked copy of this process, so that the caller need not wait; this one, where there can be none. For programs
    /// that exit then: whoever takes over their children reaps the copy.
    InBackground,
}

/// What is left to do for a run that has stopped. A later command does what is not done here.
#[derive(Debug)]
pub(super) struct Closing<'a> {
    pub(super) home: Home,
    pub(super) run_dir: RunDir,
    pub(super) log: StoppedLog,
    pub(super) outcome: &'a Outcome,
    /// Something of the sandbox is left: the entry in `live/` stays for reconcile, which removes it.
    pub(super) keeps_entry: bool,
    pub(super) tidying: Tidying,
}

/// Removes what is not to be kept of runs of this name, and what dead runs left.
#[derive(Debug)]
pub(super) struct Tidying {
    pub(super) name: Option<String>,
    pub(super) retention: Retention,
    pub(super) reconcile: Reconcile,
}

impl Closing<'_> {
    /// The result is to be tidied up by the caller, when nobody waits any more.
    pub(super) fn close(self, who: Close) -> Option<(Home, Tidying)> {
        let forked = match who {
            Close::Here => None,
            // A run of before was not closed: its process in the background may have been killed, and so would this be.
            Close::InBackground if self.tidying.reconcile == Reconcile::Now => None,
            Close::InBackground => {
                fork_to_background(self.run_dir.sign.as_fd(), BACKGROUND_LIMIT).ok()
            }
        };
        match forked {
            None => self.close_here(),
            Some(Side::Caller) => {
                let Self { run_dir, log, .. } = self;
                drop(run_dir); // the liveness lock is the copy's alone
                std::mem::forget(log); // to free memory that the copy has too would copy it first
                None
            }
            Some(Side::Background) => {
                self.close_and_tidy_up();
                exit_now(0)
            }
        }
    }

    fn close_here(self) -> Option<(Home, Tidying)> {
        let Self { home, run_dir, log, outcome, keeps_entry, tidying } = self;
        if !write_index(&home, &run_dir, log.index(outcome)) || keeps_entry {
            return None; // the next command sees to it, through the liveness lock
        }
        remove_entry(run_dir);
        Some((home, tidying))
    }

    /// The entry is the last to go, so that it shows that this process is still at work.
    fn close_and_tidy_up(self) {
        let Self { home, run_dir, log, outcome, keeps_entry, tidying } = self;
        if !write_index(&home, &run_dir, log.index(outcome)) || keeps_entry {
            return;
        }
        run_dir.sign.set_closed();
        tidying.tidy_up(&home);
        remove_entry(run_dir);
    }
}

fn write_index(home: &Home, run_dir: &RunDir, index: RunIndex) -> bool {
    if !run_dir.sign.is_there() {
        return false; // nothing is made in a home that was removed
    }
    let written = index.write(home);
    ballast::keep(home);
    if let Err(error) = &written {
        tracing::warn!(error = %error_chain(error), "the run is recorded, and not listed yet");
    }
    written.is_ok()
}

impl Tidying {
    pub(super) fn tidy_up(self, home: &Home) {
        housekeeping::tidy_up(home, self.name, self.retention, self.reconcile);
    }
}

fn remove_entry(run_dir: RunDir) {
    if let Err(error) = run_dir.close() {
        // The record is complete: the next command finds the liveness lock free, and removes it.
        tracing::warn!(error = %error_chain(&error), "the liveness lock was not removed");
    }
}
