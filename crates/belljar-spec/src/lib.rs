//! The contract of Belljar: what a run is, what a sandbox promises, what is stored and what crosses
//! the channel.
//!
//! Data only. Nothing here opens a file, asks the system anything or knows a backend.

mod attest;
mod clause;
pub mod env;
mod event;
mod outcome;
mod plan;
mod posture;
mod runspec;
pub mod text;
pub mod wire;

pub use attest::{Answer, Attempt, Attestation, CapabilitySets, Ids, SeenMount};
pub use clause::{Clause, Required, UnknownClause};
pub use event::{Event, EventKind, RECORD_VERSION};
pub use outcome::{
    EXIT_DEADLINE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_NOT_STARTED, EXIT_SIGNAL_BASE, EXIT_USAGE,
    ExecFailure, Exit, ExitSource, ExitStatus, StopReason, Usage,
};
pub use plan::{
    Access, CgroupUse, CommandPlan, HostUid, Identity, MountKind, Namespace, PLAN_VERSION, Plan,
    PlannedMount, Presence, Rlimit, Source, Tree,
};
pub use posture::{Enforcement, Posture, Unmet, Waiver};
pub use runspec::{
    BackendChoice, BackendName, Limits, Mount, MountMode, RUN_SPEC_VERSION, Rootfs, RunSpec, Stdin,
    Terminal, Tmpfs, User,
};
pub use text::OsText;

/// BLAKE3 over the JSON form, in hexadecimal.
fn hash_of(value: &impl serde::Serialize) -> String {
    // Every type hashed here is made of strings, numbers, lists and string-keyed maps, which JSON
    // can always hold.
    let mut hasher = blake3::Hasher::new();
    match serde_json::to_writer(&mut hasher, value) {
        Ok(()) => hasher.finalize().to_hex().to_string(),
        Err(error) => unreachable!("a contract type has no JSON form: {error}"),
    }
}
