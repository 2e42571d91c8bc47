//! What the tests of the command share: who runs it, where, and how it is watched.
//!
//! Everything is made below one temporary directory per [`Lab`]; nothing of the developer's own
//! settings is read. No call here waits for ever.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test that cannot be set up must stop, and say why"
)]

mod actor;
mod call;
mod docker;
mod engines;
mod fake_engine;
pub(crate) mod http;
mod lab;
mod owner;
mod private_docker;
mod processes;
mod pty;
mod strace;
mod traces;
mod world;

pub(crate) use actor::{
    Actor, TestUser, actors, as_root, each_actor, each_user, in_the_guest, soak, test_user,
};
pub(crate) use call::{Call, Done, Input, Live, PATIENCE};
pub(crate) use docker::PrivateDocker;
pub(crate) use engines::{EngineAccess, Held, TestEngine, each_engine};
pub(crate) use fake_engine::{Behaviour, FakeEngine};
pub(crate) use lab::{Lab, executable, marker};
pub(crate) use processes::{
    alive, cgroups_named, children_of, host_uids, peak_memory, processes_of, processes_with, send,
    until, wait_until_gone,
};
pub(crate) use pty::PtyRun;
pub(crate) use strace::{Fault, Point, Whose, count_calls};
pub(crate) use world::{LabWorld, WORLD_CA, Way};
