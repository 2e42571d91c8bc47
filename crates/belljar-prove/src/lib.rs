//! The attack catalogue as code.
//!
//! A [`Case`] is one attack: what it tries, the clause that it is about, a probe that runs inside a
//! sandbox, and a verdict that is taken outside. A refusal counts only with its positive control: the
//! same probe, on an unprotected arm, must get through, or it proves nothing.
//!
//! The probes are this same static executable, started inside as `belljar __probe NAME`, so that
//! a sandbox needs no other program to be attacked in. They know nothing about verdicts; the cases
//! know nothing about system calls.
#![cfg(target_os = "linux")]

mod answer;
mod case;
mod cases;
mod dialogue;
mod mark;
mod numbers;
mod probe;
mod rules;
mod stage;
pub mod world;

pub use case::{Case, Severity, Verdict};
pub use cases::catalogue;
pub use probe::run_probe;
pub use stage::{Arm, Identity, Stage, StageError};
use world::WorldError;

/// Runs one case. What goes wrong on the way is a verdict too: never a silent skip.
pub fn prove(case: &Case, stage: &Stage) -> Verdict {
    match (case.run)(stage) {
        Ok(verdict) => verdict,
        Err(StageError::World(WorldError::NoResolver)) => {
            Verdict::not_tried(belljar_spec::text::error_chain(&WorldError::NoResolver))
        }
        Err(error) => Verdict::Failed { why: belljar_spec::text::error_chain(&error) },
    }
}
