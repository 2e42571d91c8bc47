//! Backends: what makes a boundary, starts `belljar __init` behind it, hands back a channel, and removes
//! it all again. Nothing else: streams, deadlines, attestation and the record are the launcher's.

mod backend;
mod egress;
pub mod engine;
mod error;
pub mod host;
mod image_environment;
#[cfg(feature = "jail")]
pub mod jail;
pub mod own_images;
mod planning;
mod registry;
mod running;
mod shell;

pub use backend::{
    Backend, Bound, BoundSandbox, Capabilities, EngineFacts, Fetch, ImageFacts, Images, Pod,
    PullProgress, SandboxId, Unwatched, Weakness,
};
pub use error::{
    BindError, DestroyError, ImageError, LeftBehind, PlanError, StartError, Unavailable,
};
pub use planning::refuse_what_is_not_there;
#[cfg(feature = "replaceable")]
pub use registry::{Replacement, replace};
pub use registry::{by_name, destroy_leftovers, may_have_orphans, remove_orphans};
pub use running::{
    CommandStreams, InitChannel, Link, LinkOpener, RunningSandbox, Started, UnsupervisedCommand,
    Wrapping,
};
