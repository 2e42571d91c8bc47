//! The built-in sandbox: namespaces, mounts by descriptor, identity, limits.
//!
//! Three steps, as data flows: [`bind()`] opens and pins everything a plan names, [`start()`] makes the
//! processes, `apply` runs in the new process and uses only what was bound. What the attestation
//! should find is part of what `bind` returns.

mod apply;
mod bind;
pub mod cgroup;
pub(crate) mod expectation;
mod idmap;
mod mounter;
mod obstacles;
mod overlay;
mod report;
pub(crate) mod root;
mod set_up;
pub mod start;
mod usage;

pub use bind::{Bound, bind, mounts};
pub(crate) use expectation::normal_map;
pub use obstacles::{Obstacle, obstacles};
pub use report::MAX_LISTENERS;
pub use start::{Sandbox, StartError, start};
