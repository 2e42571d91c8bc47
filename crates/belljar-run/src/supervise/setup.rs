//! The set-up that PID 1 gets once, for every command of its sandbox.

use std::time::Duration;

use belljar_spec::wire::InitSetup;
use belljar_spec::{Access, Expectation, MountKind, OsText, Plan};

use super::transfer::BRING_BACK_TIMEOUT;

/// PID 1's own clock only matters when the launcher's does not work.
const INIT_DEADLINE_AFTER: Duration = Duration::from_secs(5);

/// `listen`: ports on which PID 1 itself has to take connections.
pub(super) fn setup(plan: &Plan, expectation: &Expectation, listen: Vec<u16>) -> InitSetup {
    let is_writable = |what: &MountKind| match what {
        MountKind::Bind { access, .. } => *access != Access::ReadOnly,
        MountKind::Tmpfs { .. } | MountKind::Sent { .. } => true,
        _ => false,
    };
    let mounts = plan.mounts.iter().filter(|mount| is_writable(&mount.what));
    let mut writable: Vec<OsText> = mounts.map(|mount| mount.target.clone()).collect();
    writable.push(OsText::from("/dev/shm"));
    let comes_back = |what: &MountKind| {
        matches!(what, MountKind::Sent { access: Access::Layered | Access::Writable, .. })
    };
    let mut grace = plan.limits.stop_timeout + INIT_DEADLINE_AFTER;
    if plan.mounts.iter().any(|mount| comes_back(&mount.what)) {
        grace += BRING_BACK_TIMEOUT; // the trees go away with PID 1
    }
    InitSetup {
        user: expectation.user,
        rlimits: plan.rlimits.clone(),
        filter: plan.filter.clone(),
        writable,
        write_check: expectation.writable.clone(),
        listen,
        deadline_ms: plan.limits.time.map(|limit| (limit + grace).as_millis() as u64),
    }
}
