//! Belljar runs autonomous agents, and the commands they issue, sealed off.
//!
//! This is the library that the `belljar` command is made of; the command uses nothing beneath it.
//! A run is decided by [`config::load`], planned by [`run::prepare`] and started by [`run::launch`].

pub use belljar_lab::{config, doctor, home, run};
pub use belljar_prove as prove;
pub use belljar_spec as spec;

/// What `main` of a program does first if it starts sandboxes: the same executable is PID 1 inside.
///
/// `Some` is the code to exit with.
pub fn run_as_init(args: impl Iterator<Item = std::ffi::OsString>) -> Option<i32> {
    belljar_linux::init::run_if_asked(args)
}

/// The same for the probes of [`prove`], which are this executable too.
#[doc(hidden)]
pub fn run_probe_if_asked(args: impl Iterator<Item = std::ffi::OsString>) -> Option<i32> {
    belljar_prove::run_if_asked(args)
}

/// Why a backend can, or cannot, be used here.
pub fn backend_facts(name: spec::BackendName) -> Result<String, belljar_backend::Unavailable> {
    let backend = belljar_backend::by_name(name)?;
    belljar_lab::block_on(backend.probe()).map(|capabilities| capabilities.version)
}
