//! Entry points of the helper processes that run from the launcher's executable.
//!
//! Each function looks at the arguments: `None` means that they are not for it, `Some` is the exit code of
//! the helper, which has finished.

use std::env::ArgsOs;
use std::ffi::OsString;

/// PID 1 comes first: it must do nothing else before.
const ENTRY_POINTS: [fn(ArgsOs) -> Option<i32>; 5] = [init, supervisor, proxy, exec_rules, probe];

/// Runs the helper that this process was started as, if any. For `main` of the `belljar` command.
pub fn dispatch() -> Option<i32> {
    ENTRY_POINTS.iter().find_map(|enter| enter(std::env::args_os()))
}

/// PID 1 of a sandbox. `main` of a program that starts sandboxes in its own process calls this first.
#[cfg(feature = "jail")]
pub fn init(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_linux::init::run_if_asked(args)
}

/// A build without the feature `jail` is PID 1 of no sandbox.
#[cfg(not(feature = "jail"))]
pub fn init(args: impl Iterator<Item = OsString>) -> Option<i32> {
    refuse(args, belljar_spec::init_process::ARGUMENT)
}

/// The supervisor of a run.
pub fn supervisor(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_run::run::run_supervisor_if_requested(args)
}

/// The egress proxy of a run.
pub fn proxy(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_run::run::run_proxy_if_requested(args)
}

/// The process that checks commands against the rules on `exec`.
pub fn exec_rules(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_run::run::run_rule_checker_if_requested(args)
}

/// A probe of the attack catalogue.
#[cfg(feature = "jail")]
pub fn probe(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_prove::run_probe(args)
}

/// A build without the feature `jail` has no attack catalogue.
#[cfg(not(feature = "jail"))]
pub fn probe(args: impl Iterator<Item = OsString>) -> Option<i32> {
    refuse(args, "__probe")
}

/// Says on standard error that a helper is not part of this build.
#[cfg(not(feature = "jail"))]
fn refuse(mut args: impl Iterator<Item = OsString>, helper: &str) -> Option<i32> {
    if args.nth(1)? != helper {
        return None;
    }
    let why =
        format!("this build of belljar has no {helper}: it was built without the feature jail\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), why.as_bytes());
    Some(belljar_spec::EXIT_NOT_STARTED)
}
