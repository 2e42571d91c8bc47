//! The library for programs without an async runtime: the same names, and every call waits.
//!
//! One thread in the background serves the connections of all sandboxes. A call may be made from a thread of an async
//! runtime too: it neither panics nor deadlocks, but blocks that thread.
//!
//! ```
//! # fn main() -> Result<(), belljar::Error> {
//! use belljar::blocking::Sandbox;
//!
//! let sandbox = Sandbox::start(Sandbox::builder().no_workspace())?;
//! let output = sandbox.exec(["sh", "-c", "echo hello"]).output()?;
//! assert_eq!(output.stdout_text(), "hello\n");
//! sandbox.stop()?;
//! # Ok(())
//! # }
//! ```

mod command;
mod recorded;
mod runtime;
mod sandbox;

use std::ffi::OsString;

pub use command::{Exec, Running};
pub use recorded::{Events, Logs, RecordedRun};
pub use sandbox::Sandbox;

use crate::{BackendFacts, Error, RunOutput, SandboxBuilder};
use runtime::block_on;

/// Runs one command in a new sandbox, which ends with the command; see [`SandboxBuilder::run`].
pub fn run<A: Into<OsString>>(
    settings: SandboxBuilder,
    argv: impl IntoIterator<Item = A>,
) -> Result<RunOutput, Error> {
    block_on(settings.run(argv))
}

/// See [`crate::available_backends`].
pub fn available_backends() -> Result<Vec<BackendFacts>, Error> {
    block_on(crate::available_backends())
}
