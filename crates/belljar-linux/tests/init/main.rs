//! PID 1, driven over its channel: streams, tracked descendants, dismissals, and that nothing grows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test"
)]

mod caller;
mod cases;
mod connections;
mod driver;
mod links;
mod traced;

use std::process::ExitCode;

use driver::Users;

/// Lists and runs as the usual harness does, one case after the other, in one thread.
fn main() -> ExitCode {
    if let Some(code) = belljar_linux::init::run_if_asked(std::env::args_os()) {
        return ExitCode::from(code as u8);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((caller::ARGUMENT, words)) = arguments.split_first().map(|(a, b)| (a.as_str(), b)) {
        return caller::run(words);
    }
    let has = |name: &str| arguments.iter().any(|given| given == name);
    let wanted: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let root = rustix::process::geteuid().is_root();
    for (name, case) in cases::ALL {
        for users in [Users::Two, Users::One] {
            let name = format!("{name}::{}", if users == Users::Two { "root" } else { "user" });
            if has("--list") {
                if !has("--ignored") {
                    println!("{name}: test");
                }
                continue;
            }
            let chosen = wanted.is_empty()
                || wanted.iter().any(|wanted| {
                    if has("--exact") { name == **wanted } else { name.contains(wanted.as_str()) }
                });
            if !chosen || has("--ignored") {
                continue;
            }
            if users == Users::Two && !root {
                println!("test {name} ... NOT CHECKED: needs root for a second user");
                continue;
            }
            case(users); // a panic ends the whole, with its message
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}
