//! Belljar runs autonomous agents, and the commands they issue, sealed off.
//!
//! This is the library that the `belljar` command is made of; the command uses nothing beneath it.
//! Programs start with [`Sandbox`].
//!
//! A run is decided by [`config::load`], planned by [`run::prepare`] and started by [`run::launch`].

mod sandbox;

pub use belljar_prove as prove;
pub use belljar_record as record;
pub use belljar_record::{home, ledger, store};
pub use belljar_run::{
    agent, config, debug_log, doctor, image, lineage, network, retention, reuse, run, scaffold,
};
pub use belljar_spec as spec;
pub use belljar_workspace as workspace;
pub use sandbox::{
    BackendFacts, BoxFuture, Chunk, Client, Connection, Connector, CopyError, CopyLimits,
    CopyReport, DEFAULT_OUTPUT_LIMIT, Destination, Error, Exec, Input, LaunchedRun, Omitted,
    Output, Reader, RunOutput, Running, Sandbox, SandboxBuilder, Source, Supervisors, Transport,
    Unavailable, available_backends, find_executable,
};

/// For the tests of programs that embed belljar.
pub mod testing {
    pub use crate::sandbox::fake::{FakeBackend, FakeCall, FakeReply};
}

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

/// Variables by which a launcher that is given another home directory finds the engines, and the
/// credentials for registries, that this process would find.
#[doc(hidden)]
pub fn engine_variables() -> Vec<(String, String)> {
    let engines: Vec<spec::BackendName> = spec::BackendName::engines().collect();
    belljar_backend::engine::pinned_variables(&engines)
}

/// Whether a backend answers here, and with which version. Cheap: nothing is started, so one that answers
/// may still fail; [`available_backends`] finds that out.
pub fn backend_facts(name: spec::BackendName) -> Result<String, belljar_backend::Unavailable> {
    let backend = belljar_backend::by_name(name)?;
    backend.probe().map(|capabilities| capabilities.version)
}
