//! The attack catalogue.
//!
//! A [`Case`] is one attack: what it tries, the clause that it tests, a probe that runs inside a sandbox, and a verdict
//! that is taken outside. A refusal counts only with its positive control: the same probe must succeed on an
//! unprotected arm.
//!
//! The probes are part of this static executable, started inside as `belljar __probe NAME`, so that a sandbox needs no
//! other program. They know nothing about verdicts; the cases know nothing about system calls.
#![cfg(target_os = "linux")]

mod case;
mod cases;
mod dialogue;
mod file_identity;
mod numbers;
mod probe;
mod probe_report;
mod rules;
mod testbed;
pub mod world;

pub use case::{Case, Severity, Verdict};
pub use cases::catalogue;
pub use probe::run_probe;
pub use testbed::{Arm, Identity, TestBed, TestBedError};
use world::WorldError;

/// Runs one case. A failure of the case itself is a verdict too: never a silent skip.
pub fn prove(case: &Case, testbed: &TestBed) -> Verdict {
    match (case.run)(testbed) {
        Ok(verdict) => verdict,
        Err(TestBedError::World(WorldError::NoResolver)) => {
            Verdict::not_tried(belljar_spec::text::error_chain(&WorldError::NoResolver))
        }
        Err(error) => Verdict::Failed { why: belljar_spec::text::error_chain(&error) },
    }
}
