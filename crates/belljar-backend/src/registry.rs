//! The registry: for each backend how it is found, and how what it left is removed.

use belljar_spec::BackendName;

use crate::backend::{Backend, SandboxId};
use crate::error::{DestroyError, Unavailable};
use crate::{engine, host};

type Destroy = fn(&SandboxId) -> Result<(), DestroyError>;

/// One row. Names and features are in `belljar-spec`, beside the other names that users write.
struct Registered {
    find: fn(BackendName) -> Result<Box<dyn Backend>, Unavailable>,
    /// Idempotent; finds what is ours by exact identity, without an engine that answers now: what a killed
    /// launcher left is found by what it wrote down first.
    destroy: Destroy,
}

fn registered(name: BackendName) -> Registered {
    match name {
        #[cfg(target_os = "linux")]
        BackendName::Jail => {
            Registered { find: |_| Ok(Box::new(crate::jail::Jail)), destroy: crate::jail::destroy }
        }
        #[cfg(not(target_os = "linux"))]
        BackendName::Jail => Registered {
            find: |_| {
                let fix = "use an engine: --backend docker";
                Err(Unavailable::new("the jail is made of Linux namespaces", fix))
            },
            destroy: |_| Ok(()),
        },
        BackendName::Docker | BackendName::Podman => Registered {
            find: |name| Ok(Box::new(engine::Engine::find(name)?)),
            destroy: engine::destroy,
        },
        BackendName::Host => Registered { find: |_| Ok(Box::new(host::Host)), destroy: |_| Ok(()) },
    }
}

/// The backend of this name.
pub fn by_name(name: BackendName) -> Result<Box<dyn Backend>, Unavailable> {
    let found = (registered(name).find)(name);
    if let Err(Unavailable { why, .. }) = &found {
        tracing::debug!(backend = %name, why, "backend not found");
    }
    found
}

/// Removes what a dead launcher left of a run, whichever backend it used: `run.json`, which names it, may not
/// have been written yet.
pub fn destroy_leftovers(sandbox: &SandboxId) -> Result<(), DestroyError> {
    let mut done: Vec<Destroy> = Vec::new();
    for name in BackendName::ALL {
        let destroy = registered(*name).destroy;
        // Engines share one way to find what is theirs.
        if !done.iter().any(|other| std::ptr::fn_addr_eq(*other, destroy)) {
            destroy(sandbox)?;
            done.push(destroy);
        }
    }
    Ok(())
}
