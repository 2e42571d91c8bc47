//! `cargo xtask check`: cheap checks of the tree that no test makes: the API documentation, unused dependencies,
//! links and paths in documents, the page of the command line, and the oldest supported Rust. They need no root, no engine and no network.

mod files;
mod links;
mod markdown;
mod msrv;
mod unused;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::test::{Outcome, Report};
use crate::{command, docs, host};

const DOC: &str = "doc";
const DOC_LIMIT: Duration = Duration::from_secs(10 * 60);

/// One check: its name, what it does, and what to do if it fails.
struct Check {
    name: &'static str,
    run: fn() -> Result<Vec<String>>,
    fix: &'static str,
}

const CHECKS: [Check; 4] = [
    Check {
        name: "unused",
        run: unused::faults,
        fix: "remove the dependency from the manifest, or give a reason under [unused] in \
              xtask/dependencies.toml",
    },
    Check {
        name: "links",
        run: links::faults,
        fix: "correct the link or the path; a placeholder in a path is written in capitals or as <name>",
    },
    Check {
        name: "msrv",
        run: msrv::faults,
        fix: "raise rust-version in Cargo.toml and in the documents, or use an older version of the crate",
    },
    Check {
        name: "command-line",
        run: docs::faults,
        fix: "run `cargo xtask docs`, and read the difference",
    },
];

#[derive(Debug, clap::Args)]
pub(crate) struct CheckOptions {
    /// All of them if none is named
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    checks: Vec<String>,
}

fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|check| check.name).chain([DOC])
}

pub(crate) fn main(options: &CheckOptions) -> Result<ExitCode> {
    let wanted = &options.checks;
    let mut report = Report::new();
    run(&mut report, |name| wanted.is_empty() || wanted.iter().any(|one| one == name));
    print!("{}", report.summary());
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Also part of `cargo xtask test`.
pub(crate) fn steps(report: &mut Report) {
    run(report, |_| true);
}

fn run(report: &mut Report, is_wanted: impl Fn(&str) -> bool) {
    for check in CHECKS.iter().filter(|check| is_wanted(check.name)) {
        report.step(check.name, || verdict(check));
    }
    if is_wanted(DOC) {
        report.step(DOC, documentation);
    }
}

fn verdict(check: &Check) -> Result<Outcome> {
    let faults = (check.run)()?;
    for fault in &faults {
        eprintln!("    {fault}");
    }
    match faults.as_slice() {
        [] => Ok(Outcome::Passed),
        [first, ..] => bail!("{} faults, the first: {first}; {}", faults.len(), check.fix),
    }
}

/// The documentation of our own crates, private items included, without a warning.
fn documentation() -> Result<Outcome> {
    let mut cargo = host::cargo()?;
    cargo.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--keep-going"]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    command::check(&mut cargo, DOC_LIMIT)
        .context("correct the documentation comments that rustdoc names above")?;
    Ok(Outcome::Passed)
}

/// Cargo's description of the workspace; with every dependency, or of our own crates alone.
fn metadata(scope: Packages) -> Result<Vec<Value>> {
    let mut cargo = host::cargo()?;
    cargo.args(["metadata", "--format-version=1", "--locked"]);
    if scope == Packages::Own {
        cargo.arg("--no-deps");
    }
    let text = command::read(&mut cargo)?;
    let mut data: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    match data["packages"].take() {
        Value::Array(packages) if !packages.is_empty() => Ok(packages),
        _ => bail!("cargo metadata names no package"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packages {
    Own,
    All,
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("cargo metadata: a package without {key}"))
}
