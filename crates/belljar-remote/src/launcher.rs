//! The `belljar` command with this crate's backend in the jail's place, for the conformance tests.

#[path = "../../belljar/src/cli/mod.rs"]
mod cli;
#[path = "../../belljar/src/commands/mod.rs"]
mod commands;
#[path = "../../belljar/src/dispatch.rs"]
mod dispatch;
#[path = "../../belljar/src/logging/mod.rs"]
mod logging;
#[path = "../../belljar/src/report.rs"]
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = belljar_remote::run_if_asked(std::env::args_os()) {
        return ExitCode::from(code.clamp(0, 255) as u8);
    }
    belljar_remote::take_the_jails_place();
    dispatch::main()
}
