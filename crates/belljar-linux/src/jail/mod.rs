//! The built-in sandbox: namespaces, mounts by descriptor, identity, limits.
//!
//! Three steps, as data flows: [`bind()`] opens and pins everything a plan names, [`start()`] makes the
//! processes, `apply` runs in the new process and uses only what was bound. What the attestation
//! should find is part of what `bind` returns.

mod apply;
pub mod bind;
pub mod cgroup;
mod control;
mod copy_tree;
mod expand;
pub(crate) mod expectation;
pub mod identity;
mod idmap;
mod linked;
mod overlay;
mod privileged;
mod report;
pub mod resolve;
pub(crate) mod root;
pub mod sensitive;
pub mod start;
mod survey;
mod usage;

pub use bind::{AnnouncedCopy, BindError, Bound, SurveyedTree, bind, copies_ahead};
pub(crate) use expectation::normal_map;
pub use report::MAX_LISTENERS;
pub use start::{Sandbox, StartError, start};
