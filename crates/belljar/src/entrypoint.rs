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
pub fn init(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_linux::init::run_if_asked(args)
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
pub fn probe(args: impl Iterator<Item = OsString>) -> Option<i32> {
    belljar_prove::run_probe(args)
}
