//! The `belljar` command: parses arguments, calls the library, and prints the result.

mod cli;
mod commands;
mod dispatch;
mod logging;
mod report;

fn main() -> std::process::ExitCode {
    dispatch::main()
}
