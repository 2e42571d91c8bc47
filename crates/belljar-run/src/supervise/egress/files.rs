//! Raises the limit of open files for a supervisor that has connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// All connections that there may be, and all else that a run has; a shell's usual limit is less.
pub(super) const WANTED: u64 = 4096;

/// As many as are needed, where there may be as many. With this the old limit comes back: whatever is started
/// for the run's end is not to inherit ours.
#[derive(Debug)]
pub(super) struct MoreFiles {
    before: Rlimit,
}

impl MoreFiles {
    /// `None`: there is nothing to change, or it cannot be. Then connections wait when no descriptor is to be had.
    pub(super) fn take() -> Option<Self> {
        let before = getrlimit(Resource::Nofile);
        let raised = raised(&before)?;
        setrlimit(Resource::Nofile, raised).ok()?;
        Some(Self { before })
    }
}

impl Drop for MoreFiles {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.before); // lower, which is always allowed
    }
}

fn raised(now: &Rlimit) -> Option<Rlimit> {
    let wanted = now.maximum.map_or(WANTED, |most| most.min(WANTED));
    let is_less = now.current.is_some_and(|current| current < wanted);
    is_less.then_some(Rlimit { current: Some(wanted), maximum: now.maximum })
}
