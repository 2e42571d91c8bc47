//! Shared helpers of the integration tests: users, engines, processes, terminals, injected faults.
//!
//! Everything is created below one temporary directory per [`Lab`]; the developer's settings are not read. Every call
//! has a timeout.

#![allow(missing_debug_implementations, reason = "used by tests only")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test that cannot be set up must stop, and say why"
)]

mod actor;
mod call;
mod cost;
mod docker;
mod engines;
mod fake_engine;
pub mod http;
mod image_archive;
mod lab;
mod model_server;
mod owner;
pub mod private_docker;
mod processes;
mod pty;
mod real_agent;
mod remote_agent;
mod scan;
mod strace;
mod token_endpoint;
mod traces;
mod world;

pub use actor::{
    Actor, TestUser, actors, as_root, each_actor, each_user, in_the_guest, must_work, soak,
    test_user,
};
pub use call::{CALL_TIMEOUT, Call, Done, Input, Live, wait_for_index};
pub use cost::{Cost, calls_in};
pub use docker::PrivateDocker;
pub use engines::{EngineAccess, Held, TestEngine, each_engine};
pub use fake_engine::{Behaviour, FakeEngine};
pub use image_archive::{TestImage, TestLayer};
pub use lab::{Lab, built, executable, marker};
pub use model_server::{
    ModelApi, ModelRequest, ModelServer, Transport, Turn, TurnUsage, WebSockets,
};
pub use processes::{
    alive, cgroups_named, children_of, host_uids, peak_memory, processes_of, processes_with, send,
    until, wait_until_gone,
};
pub use pty::PtyRun;
pub use real_agent::{AGENTS_VARIABLE, RealAgent};
pub use remote_agent::{REMOTE_LEASE_MS, RemoteAgent};
pub use scan::{files_with, in_same_pid_namespace, memory_has, variable_of};
pub use strace::{Fault, Point, TraceScope, count_calls, traced};
pub use token_endpoint::{AccessForm, EndpointMode, TokenEndpoint};
pub use world::{LabWorld, TlsHandling, WORLD_CA};
