//! Copies a tree of files out of a sandbox, or into it.
//!
//! Done by a process that is locked down like any command and has its user and its limits, so that it
//! can reach exactly what a command could. It runs no program of the sandbox.

mod list;
mod pack;
#[cfg(test)]
mod tests;
mod unpack;

use belljar_spec::text::escape;
use belljar_spec::wire::Work;

use belljar_sys::signal;

/// Does it, over standard input and output. The answer is the exit code.
pub(super) fn work(work: &Work) -> i32 {
    // If the reader stops, a write must return an error and not kill this process.
    signal::ignore_broken_pipe();
    let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    match work {
        Work::Program { .. } | Work::Nothing => 0,
        Work::Pack { path } => match pack::pack(path.as_path(), stdout) {
            Ok(()) => 0,
            Err(error) => {
                complain(&belljar_spec::text::error_chain(&error));
                1
            }
        },
        Work::List { path } => match list::list(path.as_path(), stdout) {
            Ok(()) => 0,
            Err(error) => {
                complain(&belljar_spec::text::error_chain(&error));
                1
            }
        },
        Work::Unpack { path, modes, read_only } => {
            let how = unpack::UnpackRules { modes: *modes, read_only: *read_only };
            match unpack::unpack(path.as_path(), how, stdin, complain) {
                Ok(unpack::UnpackOutcome::Whole) => 0,
                Ok(unpack::UnpackOutcome::WithFailures) => 1,
                Err(error) => {
                    complain(&belljar_spec::text::error_chain(&error));
                    1
                }
            }
        }
    }
}

/// A line on standard error. Names are hostile, so nothing in it moves a cursor.
fn complain(message: &str) {
    let line = format!("{}\n", escape(message.as_bytes()));
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes()); // there is no other place to report it
}
