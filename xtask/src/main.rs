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
mod engines;
mod fresh;
mod guest;
mod host;
mod processes;
mod schema;
mod scratch;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  test [--fresh] [--no-guest] [--guest-only] [--soak] [-- NEXTEST-ARGS]
                        installs what is missing (Debian, root), then fmt, clippy, licences, every
                        test, doc tests, and the guest; with private container engines;
                        --fresh: on a new machine, in a tree that debootstrap makes (Debian, root)
  check [unused] [links] [msrv] [doc]
                        unused dependencies, links and paths in documents, the oldest supported Rust,
                        API documentation; all of them if none is named; also part of test
  dependencies          licences and sources of the crates, and crates that are not wanted
  guest [--release] [--timeout SECONDS] [--self-test]
                        the jail's tests in a virtual machine with a stock kernel and cgroup v2
  engines -- COMMAND    the command, with the container engines of the tests around it
  bench start [--rounds N] [--json FILE]
                        how long a start takes, beside the peers that this machine has
  bench record [--only PART,…] [--quick] [--large] [--jails N] [--json FILE]
                        what the record, exec and many sandboxes at once cost
  bench engines [--quick] [--json FILE]
                        containers through belljar, beside the engines' own commands
  bench egress [--only PART,…] [--quick] [--install-peers] [--json FILE]
                        the way out: a download, small requests, many connections, beside peers
  bench workspace [--quick] [--files N] [--json FILE]
                        layered trees: their start, and looking at changes, beside git and diff
  bench loop [--quick] [--files N] [--json FILE]
                        an iteration besides the agent's own, resume, and reading agents' output
  schema                writes docs/manifest.schema.json anew
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[String]) -> Result<ExitCode> {
    let Some((command, rest)) = words.split_first() else {
        eprint!("{USAGE}");
        return Ok(ExitCode::from(2));
    };
    match command.as_str() {
        "test" => test::main(rest),
        "check" => check::main(rest),
        "dependencies" => test::dependencies(),
        "guest" => guest::main(rest),
        "engines" => engines::main(rest),
        "bench" => bench::main(rest),
        "schema" => schema::main(rest),
        engines::KEEPER => engines::keep(rest),
        fresh::INSIDE => fresh::inside(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        unknown => bail!("there is no command `{unknown}`; `cargo xtask help` lists them"),
    }
}
