//! The registry: for each backend how it is found, and how what it left is removed.

use belljar_spec::{BackendName, Leftovers};

use crate::backend::{Backend, SandboxId};
use crate::error::{DestroyError, Unavailable};
use crate::{engine, host};

/// A backend of the program's own, in place of one of the rows.
#[cfg(feature = "replaceable")]
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    pub name: BackendName,
    pub find: fn(BackendName) -> Result<Box<dyn Backend>, Unavailable>,
    pub destroy: fn(&SandboxId) -> Result<(), DestroyError>,
}

#[cfg(feature = "replaceable")]
static REPLACEMENT: std::sync::OnceLock<Replacement> = std::sync::OnceLock::new();

/// Before anything asks for a backend. The first one counts.
#[cfg(feature = "replaceable")]
pub fn replace(replacement: Replacement) {
    let _ = REPLACEMENT.set(replacement);
}

type Destroy = fn(&SandboxId) -> Result<(), DestroyError>;

/// One row. Names and features are in `belljar-spec`, beside the other names that users write.
struct Registered {
    find: fn(BackendName) -> Result<Box<dyn Backend>, Unavailable>,
    /// Idempotent; finds what is ours by exact identity, without an engine that answers now: what a killed
    /// launcher left is found by what it wrote down first.
    destroy: Destroy,
    /// Whether there may be something left of homes that were removed while a run lived. Cheap.
    may_have_orphans: fn() -> bool,
    /// Removes it: no home names it any more.
    remove_orphans: fn(),
}

/// A backend whose sandboxes end with their launcher.
const NOTHING_LEFT: Registered = Registered {
    find: |name| Err(Unavailable::new(format!("{name} is not a backend of this build"), "")),
    destroy: |_| Ok(()),
    may_have_orphans: || false,
    remove_orphans: || {},
};

#[cfg(not(feature = "jail"))]
const NO_JAIL: &str =
    "this build of belljar has no jail (it was built without the feature \"jail\")";

fn registered(name: BackendName) -> Registered {
    #[cfg(feature = "replaceable")]
    if let Some(Replacement { find, destroy, .. }) =
        REPLACEMENT.get().filter(|replacement| replacement.name == name)
    {
        return Registered { find: *find, destroy: *destroy, ..NOTHING_LEFT };
    }
    match name {
        #[cfg(feature = "jail")]
        BackendName::Jail => Registered {
            find: |_| Ok(Box::new(crate::jail::Jail)),
            destroy: crate::jail::destroy,
            may_have_orphans: crate::jail::may_have_orphans,
            remove_orphans: crate::jail::remove_orphans,
        },
        #[cfg(not(feature = "jail"))]
        BackendName::Jail => Registered {
            find: |_| Err(Unavailable::new(NO_JAIL, "use an engine: --backend docker")),
            ..NOTHING_LEFT
        },
        BackendName::Docker | BackendName::Podman => Registered {
            find: |name| Ok(Box::new(engine::Engine::find(name)?)),
            destroy: engine::destroy,
            ..NOTHING_LEFT
        },
        BackendName::Host => Registered { find: |_| Ok(Box::new(host::Host)), ..NOTHING_LEFT },
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
    let mut called: Vec<Destroy> = Vec::new();
    for name in BackendName::ALL.iter().filter(|name| leaves_something(**name)) {
        let destroy = registered(*name).destroy;
        // Backends with the same function have their leftovers found by one call.
        if !called.iter().any(|other| std::ptr::fn_addr_eq(*other, destroy)) {
            destroy(sandbox)?;
            called.push(destroy);
        }
    }
    Ok(())
}

fn leaves_something(name: BackendName) -> bool {
    name.features().leftovers != Leftovers::Processes
}

/// Whether any backend may have left something that no home names.
pub fn may_have_orphans() -> bool {
    BackendName::ALL.iter().any(|name| (registered(*name).may_have_orphans)())
}

/// Removes what no home names any more, on every backend.
pub fn remove_orphans() {
    for name in BackendName::ALL {
        (registered(*name).remove_orphans)();
    }
}
