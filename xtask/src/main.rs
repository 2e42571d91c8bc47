//! `cargo xtask`: what is run on the project, not part of it: the whole test, the guest with the
//! other kind of kernel, the comparison with peers. It must never stop a process or a service that
//! it did not start.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is a report for the person or the CI that called it"
)]

mod artifacts;
mod bench;
mod check;
mod command;
mod debian;
mod docs;
mod engines;
mod fresh;
mod guest;
mod host;
mod processes;
mod schema;
mod scratch;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Tests, checks and measures Belljar
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what is missing (Debian, root), then run every check and test, with private container engines
    Test(test::TestOptions),
    /// Check dependencies, documents, the oldest supported Rust and the API documentation; also part of `test`
    Check(check::CheckOptions),
    /// Check the licences and sources of the crates, and that no unwanted crate is used
    Dependencies,
    /// Run the jail's tests in a virtual machine with a stock kernel and cgroup v2
    Guest(guest::GuestOptions),
    /// Run one command with the container engines of the tests
    Engines(engines::EnginesOptions),
    /// Measure Belljar beside its peers
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Write docs/manifest.schema.json
    Schema,
    /// Write docs/command-line.md from the definition of the command line
    Docs,
    #[command(name = engines::KEEPER, hide = true)]
    KeepEngines { busybox: PathBuf, engines: Vec<String> },
    #[command(name = fresh::INSIDE, hide = true)]
    FreshInside(fresh::InsideOptions),
}

impl Task {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Test(options) => test::main(&options),
            Self::Check(options) => check::main(&options),
            Self::Dependencies => test::dependencies(),
            Self::Guest(options) => guest::main(&options),
            Self::Engines(options) => engines::main(&options),
            Self::Bench(bench) => bench.run(),
            Self::Schema => schema::main(),
            Self::Docs => docs::main(),
            Self::KeepEngines { busybox, engines } => engines::keep(&busybox, &engines),
            Self::FreshInside(options) => fresh::inside(&options),
        }
    }
}

fn main() -> ExitCode {
    match CommandLine::parse().task.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The options of one command, from its arguments.
#[cfg(test)]
fn parsed<T: clap::Args>(arguments: &str) -> Result<T, clap::Error> {
    let command = T::augment_args(clap::Command::new("xtask").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(arguments.split_whitespace())?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_declared_soundly() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_arguments_of_a_command_with_engines_are_its_own() {
        for line in
            ["xtask engines -- cargo test -p belljar", "xtask engines cargo test -p belljar"]
        {
            let parsed = CommandLine::try_parse_from(line.split(' ')).unwrap();
            let Task::Engines(options) = parsed.task else { panic!("not engines: {line}") };
            assert_eq!(options.command, ["cargo", "test", "-p", "belljar"]);
        }
        assert!(CommandLine::try_parse_from(["xtask", "engines"]).is_err());
        assert!(CommandLine::try_parse_from(["xtask", "tests"]).is_err());
    }
}
