//! Binds a plan for the jail: the trees, the limits that the kernel counts per user, and what the attestation must
//! find.

use belljar_bind::{BindError, Mounts};
use belljar_spec::{Expectation, HostPaths, LinkKind, Plan};
use belljar_sys::background::is_single_threaded;

use super::expectation::expectation;
use super::mounter;
use crate::sys::pod_namespaces::PodNamespaces;
use crate::user_limits::UserLimits;

/// Everything the sandbox is made of.
#[derive(Debug)]
pub struct Bound {
    pub host: belljar_bind::Bound,
    pub(super) user_limits: UserLimits,
    pub expectation: Expectation,
    pub(super) link: LinkKind,
    /// Being made. `None` where that failed: the start tries again, and reports why.
    pub(super) namespaces: Option<PodNamespaces>,
}

impl Bound {
    /// The channel of the sandbox is a source of links: what starts it sends a descriptor for each.
    #[must_use]
    pub fn over_links(self) -> Self {
        Self { link: LinkKind::Breakable, ..self }
    }
}

pub fn bind(plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
    // First: they are made while this process opens the sources.
    let namespaces = begin_namespaces();
    let host = belljar_bind::bind(plan, place, mounts())?;
    let user_limits = UserLimits::of_caller(&host.plan.rlimits);
    let expectation = expectation(&host.plan, &host.identity, &host.mounts, &user_limits);
    Ok(Bound { host, user_limits, expectation, link: LinkKind::Lasting, namespaces })
}

/// Not where there are other threads: the process would end with the thread that calls this.
fn begin_namespaces() -> Option<PodNamespaces> {
    is_single_threaded().then(PodNamespaces::begin)?.ok()
}

/// Root clones trees; an ordinary user's sandbox opens them again in its mount namespace.
pub fn mounts() -> Mounts {
    match rustix::process::geteuid().is_root() {
        true => Mounts::ByRoot(mounter::for_run),
        false => Mounts::ByPath,
    }
}
