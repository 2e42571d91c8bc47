//! Backends: what makes a boundary, starts `belljar __init` behind it, hands back a channel, and takes
//! it all away again. Nothing else: streams, deadlines, attestation and the record are the launcher's.

mod backend;
mod egress;
pub mod engine;
pub mod host;
#[cfg(target_os = "linux")]
pub mod jail;
mod planning;

pub use planning::refuse_what_is_not_there;

pub use backend::{
    Backend, BindError, Bound, BoxFuture, Capabilities, CommandStreams, DestroyError, EngineFacts,
    Fetch, Found, ImageError, ImageFacts, InitChannel, ListError, PlanError, PullProgress,
    SandboxId, StartError, Started, Unavailable, Unwatched, Weakness, Wrapping,
};

use belljar_spec::BackendName;

/// The backends of this build, by name.
pub fn by_name(name: BackendName) -> Result<Box<dyn Backend>, Unavailable> {
    match name {
        #[cfg(target_os = "linux")]
        BackendName::Jail => Ok(Box::new(jail::Jail)),
        #[cfg(not(target_os = "linux"))]
        BackendName::Jail => Err(Unavailable::new(
            "the jail is made of Linux namespaces",
            "use an engine: --backend docker",
        )),
        BackendName::Host => Ok(Box::new(host::Host)),
        BackendName::Docker | BackendName::Podman => Ok(Box::new(engine::Engine::find(name)?)),
    }
}
