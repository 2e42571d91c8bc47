//! Belljar runs autonomous agents, and the commands they issue, in sandboxes.
//!
//! This is the library behind the `belljar` command, which uses no other crate of the project directly.
//! Programs start with [`Sandbox`].
//!
//! [`config::load`] resolves the settings of a run, [`run::prepare`] plans it and [`run::launch`] starts it.

pub mod blocking;
pub mod entrypoint;
mod recorded;
mod sandbox;

#[cfg(feature = "jail")]
pub use belljar_prove as prove;
pub use belljar_record as record;
pub use belljar_record::{home, ledger, store};
pub use belljar_run::{
    agent, config, debug_log, denied_calls, doctor, image, lineage, login, network, own_images,
    retention, reuse, run, scaffold, setup,
};
pub use belljar_spec as spec;
pub use belljar_spec::Pull;
pub use belljar_spec::egress::PublishSpec;
pub use belljar_spec::network_list::{NetworkAccess, NetworkChange, NetworkList, NetworkState};
pub use belljar_workspace as workspace;
pub use recorded::review::ChangesError;
pub use recorded::{
    ApplyOptions, ApplyReport, ApplyTree, Checkpoint, Diff, DryRun, Events, Follow, ForkOptions,
    LogPiece, Logs, RecordedRun, TreeChanges, output, review,
};
pub use sandbox::{
    BackendFacts, BoxFuture, Chunk, Client, Collected, Connection, Connector, CopyError,
    CopyLimits, CopyReport, CopyRules, CopySource, DEFAULT_FILE_LIMIT, DEFAULT_OUTPUT_LIMIT,
    Destination, DirEntry, Error, Exec, ExistingDirectory, FileError, FileInfo, FileKind,
    HostTarget, Input, LaunchedRun, MissingParents, Omitted, Output, ReadOnlyFiles, Reader,
    RunOutput, Running, Sandbox, SandboxBuilder, Secret, Source, Supervisors, Transport,
    Unavailable, available_backends, find_executable,
};

/// Helpers for the tests of programs that embed belljar.
pub mod testing {
    pub use crate::sandbox::fake::{FakeBackend, FakeCall, FakeReply};
}

/// Environment variables that let a launcher with another home directory find the same engines and
/// registry credentials as this process.
#[doc(hidden)]
pub fn engine_variables() -> Vec<(String, String)> {
    let engines: Vec<spec::BackendName> = spec::BackendName::engines().collect();
    belljar_backend::engine::pinned_variables(&engines)
}

/// The version of a backend, if it responds. Cheap: nothing is started, so a backend that responds may
/// still fail; [`available_backends`] tests that.
pub fn backend_facts(name: spec::BackendName) -> Result<String, belljar_backend::Unavailable> {
    let backend = belljar_backend::by_name(name)?;
    backend.probe().map(|capabilities| capabilities.version)
}
