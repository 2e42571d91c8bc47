//! What Belljar's own processes (launcher, supervisor, proxy, PID 1) need from the kernel, on every backend.
//!
//! Knows nothing of plans and sandboxes. `unsafe` is only in `background`, `descriptors`, `kernel` and `signal`: the calls that
//! `rustix` does not have, each behind a function that is safe to call.

pub mod background;
pub mod cgroup_files;
mod descriptors;
mod errno;
mod kernel;
pub mod kernel_file;
pub mod mountinfo;
pub mod relay;
#[cfg(target_os = "linux")]
pub mod self_confine;
pub mod signal;
mod step;

pub use descriptors::close_from;
pub use kernel::{kernel, landlock_version, namespaces};
pub use step::{StepError, step};
