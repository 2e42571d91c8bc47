//! Binds a plan for the jail: the trees, the limits that the kernel counts per user, and what the attestation must
//! find.

use belljar_bind::{BindError, Mounts};
use belljar_spec::{Expectation, HostPaths, LinkKind, Plan};

use super::expectation::expectation;
use super::mounter;
use crate::user_limits::UserLimits;

/// Everything the sandbox is made of.
#[derive(Debug)]
pub struct Bound {
    pub host: belljar_bind::Bound,
    pub(super) user_limits: UserLimits,
    pub expectation: Expectation,
    pub(super) link: LinkKind,
}

impl Bound {
    /// The channel of the sandbox is a source of links: what starts it sends a descriptor for each.
    #[must_use]
    pub fn over_links(self) -> Self {
        Self { link: LinkKind::Breakable, ..self }
    }
}

pub fn bind(plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
    let host = belljar_bind::bind(plan, place, mounts())?;
    let user_limits = UserLimits::of_caller(&host.plan.rlimits);
    let expectation = expectation(&host.plan, &host.identity, &host.mounts, &user_limits);
    Ok(Bound { host, user_limits, expectation, link: LinkKind::Lasting })
}

/// Root clones trees; an ordinary user's sandbox opens them again in its mount namespace.
pub fn mounts() -> Mounts {
    match rustix::process::geteuid().is_root() {
        true => Mounts::ByRoot(mounter::for_run),
        false => Mounts::ByPath,
    }
}
