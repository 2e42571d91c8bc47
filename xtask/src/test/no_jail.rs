//! The build without the jail: it depends on nothing that only Linux has, passes the lints, and starts containers.

use std::time::Duration;

use anyhow::{Result, bail};

use super::report::Outcome;
use crate::scratch::Scratch;
use crate::{artifacts, command, host};

/// Crates of the project that need Linux.
const LINUX_ONLY: [&str; 2] = ["belljar-linux", "belljar-prove"];
const FEATURES: &str = "--no-default-features";
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Looks at the dependencies, and checks the code with the lints.
pub(super) fn check() -> Result<Outcome> {
    let with = dependencies(&[])?;
    let without = dependencies(&[FEATURES])?;
    for name in LINUX_ONLY {
        // Else the name would have changed, and this would check nothing.
        if !names(&with, name) {
            bail!("a default build of belljar does not contain {name}");
        }
        if names(&without, name) {
            bail!(
                "belljar without the feature jail depends on {name}: cargo tree -p belljar {FEATURES} -i {name}"
            );
        }
    }
    let mut clippy = host::cargo()?;
    clippy.args(["clippy", "-p", "belljar", FEATURES, "--", "-D", "warnings"]);
    command::check(&mut clippy, LIMIT)?;
    Ok(Outcome::Passed)
}

/// Builds it and copies it away: a default build puts its executable in the same place.
pub(super) fn build(into: &mut Option<Scratch>) -> Result<Outcome> {
    let directory = Scratch::new("no-jail")?;
    directory.copy_executable(&artifacts::build_belljar_without_jail()?)?;
    *into = Some(directory);
    Ok(Outcome::Passed)
}

/// What [`build`] copied.
pub(super) fn launcher(directory: &Scratch) -> String {
    directory.path().join("belljar").display().to_string()
}

fn dependencies(features: &[&str]) -> Result<String> {
    let mut tree = host::cargo()?;
    tree.args(["tree", "-p", "belljar", "--edges=normal", "--prefix=none"]).args(features);
    command::read(&mut tree)
}

fn names(tree: &str, package: &str) -> bool {
    tree.lines().any(|line| line.split(' ').next() == Some(package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_its_whole_name() {
        let tree = "belljar v0.1.0 (/x)\nbelljar-linux v0.1.0 (/x) (*)\n";
        assert!(names(tree, "belljar-linux"));
        assert!(!names(tree, "belljar-lin") && !names(tree, "linux"));
    }
}
