//! Builds executables, and reads from cargo what was built.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::line;
use crate::host;

/// The optimisation to build with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// An integration test of the package `belljar`.
#[derive(Clone)]
pub(crate) struct TestExecutable {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

pub(crate) struct Artifacts {
    pub(crate) belljar: PathBuf,
    pub(crate) tests: Vec<TestExecutable>,
}

/// Builds every test of the workspace and the executable. The tests are built for the whole
/// workspace at once, as the test run does, so that nothing is compiled twice with other features.
pub(crate) fn build_tests(profile: Profile) -> Result<Artifacts> {
    let artifacts = messages(&["test", "--no-run", "--workspace", "--tests"], profile)?;
    let tests = artifacts.iter().filter_map(integration_test).collect();
    // Cargo builds the executable itself only if the package has an integration test.
    let belljar = match artifacts.iter().find_map(|artifact| executable(artifact, "belljar")) {
        Some(path) => path,
        None => build_belljar(profile)?,
    };
    Ok(Artifacts { belljar, tests })
}

/// Builds one integration test of the package `belljar`, and the executable.
pub(crate) fn build_test(name: &str) -> Result<PathBuf> {
    only_belljar(&["test", "--no-run", "-p", "belljar", "--test", name], Profile::Dev)
}

/// Builds only the executable.
pub(crate) fn build_belljar(profile: Profile) -> Result<PathBuf> {
    only_belljar(&["build", "-p", "belljar"], profile)
}

/// The launcher for systems that cannot have the jail. It takes the place of the executable with it.
pub(crate) fn build_belljar_without_jail() -> Result<PathBuf> {
    only_belljar(&["build", "-p", "belljar", "--no-default-features"], Profile::Dev)
}

/// The command with the backend of `belljar-remote` in the jail's place.
pub(crate) fn build_remote_launcher() -> Result<PathBuf> {
    const NAME: &str = "belljar-over-tcp";
    let arguments = ["build", "-p", "belljar-remote", "--features", "launcher", "--bin", NAME];
    let built = messages(&arguments, Profile::Dev)?;
    let found = built.iter().find_map(|artifact| executable(artifact, NAME));
    found.context("cargo built the package belljar-remote, but named no executable")
}

fn only_belljar(arguments: &[&str], profile: Profile) -> Result<PathBuf> {
    messages(arguments, profile)?
        .iter()
        .find_map(|artifact| executable(artifact, "belljar"))
        .context("cargo built the package belljar, but named no executable")
}

/// What measures in its own process must be as optimised as what it measures.
pub(crate) struct Measuring {
    pub(crate) belljar: PathBuf,
    pub(crate) xtask: PathBuf,
}

pub(crate) fn build_measuring() -> Result<Measuring> {
    let built = messages(&["build", "-p", "belljar", "-p", "xtask"], Profile::Release)?;
    let named = |name: &str| {
        let found = built.iter().find_map(|artifact| executable(artifact, name));
        found.with_context(|| format!("cargo built the package {name}, but named no executable"))
    };
    Ok(Measuring { belljar: named("belljar")?, xtask: named("xtask")? })
}

fn messages(arguments: &[&str], profile: Profile) -> Result<Vec<Value>> {
    let mut cargo = host::cargo()?;
    cargo.args(arguments).arg("--message-format=json-render-diagnostics");
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    cargo.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = cargo.output().with_context(|| format!("cannot start `{}`", line(&cargo)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", line(&cargo), output.status);
    }
    Ok(artifacts_in(&String::from_utf8_lossy(&output.stdout)))
}

fn artifacts_in(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .collect()
}

fn executable(artifact: &Value, name: &str) -> Option<PathBuf> {
    let is_it = artifact["target"]["name"] == name
        && has_kind(artifact, "bin")
        && artifact["profile"]["test"] == false;
    if is_it { artifact["executable"].as_str().map(PathBuf::from) } else { None }
}

fn integration_test(artifact: &Value) -> Option<TestExecutable> {
    // `path+file:///…/crates/belljar#0.1.0`, or `…#belljar@0.1.0` where the directory differs.
    let package = artifact["package_id"].as_str()?;
    let (place, tag) = package.rsplit_once('#')?;
    if !(place.ends_with("/belljar") || tag.starts_with("belljar@")) {
        return None;
    }
    if !has_kind(artifact, "test") {
        return None;
    }
    Some(TestExecutable {
        name: artifact["target"]["name"].as_str()?.to_owned(),
        path: PathBuf::from(artifact["executable"].as_str()?),
    })
}

fn has_kind(artifact: &Value, kind: &str) -> bool {
    let kinds = artifact["target"]["kind"].as_array();
    kinds.is_some_and(|kinds| kinds.iter().any(|found| found == kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = concat!(
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/belljar#0.1.0","#,
        r#""target":{"kind":["test"],"name":"jail_limits"},"profile":{"test":true},"#,
        r#""executable":"/t/jail_limits-1"}"#,
        "\nnot json\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/belljar#0.1.0","#,
        r#""target":{"kind":["bin"],"name":"belljar"},"profile":{"test":true},"#,
        r#""executable":"/t/belljar-unit-tests"}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/belljar#0.1.0","#,
        r#""target":{"kind":["bin"],"name":"belljar"},"profile":{"test":false},"#,
        r#""executable":"/t/belljar"}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/belljar-lab#0.1.0","#,
        r#""target":{"kind":["test"],"name":"other"},"profile":{"test":true},"#,
        r#""executable":"/t/other-1"}"#,
    );

    #[test]
    fn the_executable_is_not_its_unit_tests() {
        let found = |name| -> Vec<_> {
            let all = artifacts_in(MESSAGES);
            all.iter().filter_map(|artifact| executable(artifact, name)).collect()
        };
        assert_eq!(found("belljar"), [PathBuf::from("/t/belljar")]);
        assert!(found("xtask").is_empty());
    }

    #[test]
    fn only_the_integration_tests_of_the_command_are_taken() {
        let found: Vec<_> = artifacts_in(MESSAGES).iter().filter_map(integration_test).collect();
        let names: Vec<_> = found.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["jail_limits"]);
    }
}
