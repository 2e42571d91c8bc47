//! What PID 1 is told once, about every command of its sandbox.

use std::time::Duration;

use belljar_spec::wire::InitSetup;
use belljar_spec::{Access, MountKind, OsText, Plan, Tree, User};

/// PID 1's own clock only matters when the launcher's does not work.
const INIT_DEADLINE_AFTER: Duration = Duration::from_secs(5);

/// `listen`: ports on which PID 1 itself has to take connections.
pub(super) fn setup(plan: &Plan, user: User, listen: Vec<u16>) -> InitSetup {
    let mut writable = Vec::new();
    let mut write_check = Vec::new();
    for mount in &plan.mounts {
        match &mount.what {
            MountKind::Bind { access: Access::Writable, tree, .. } => {
                writable.push(mount.target.clone());
                // Nothing is ever made in a user's tree, not even for a moment.
                if *tree == Tree::Own {
                    write_check.push(mount.target.clone());
                }
            }
            MountKind::Tmpfs { .. } => {
                writable.push(mount.target.clone());
                write_check.push(mount.target.clone());
            }
            _ => {}
        }
    }
    writable.push(OsText::from("/dev/shm"));
    let grace = plan.limits.stop_timeout + INIT_DEADLINE_AFTER;
    InitSetup {
        user,
        rlimits: plan.rlimits.clone(),
        filter: plan.filter.clone(),
        writable,
        write_check,
        listen,
        deadline_ms: plan.limits.time.map(|limit| (limit + grace).as_millis() as u64),
    }
}
