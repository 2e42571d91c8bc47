//! Backends: what makes a boundary, starts `belljar __init` behind it, hands back a channel, and takes
//! it all away again. Nothing else: streams, deadlines, attestation and the record are the launcher's.

mod backend;
pub mod host;
#[cfg(target_os = "linux")]
pub mod jail;

pub use backend::{
    Backend, BindError, Bound, BoxFuture, Capabilities, DestroyError, Found, ListError, PlanError,
    SandboxId, StartError, Started, Unavailable, Weakness,
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
        BackendName::Docker | BackendName::Podman => Err(Unavailable::new(
            format!("this version of belljar has no {name} backend yet"),
            "use the built-in sandbox: --backend jail",
        )),
    }
}
