//! The launcher whose jail is behind TCP: it alone has a registry in which a backend can be replaced.

use std::time::Duration;

use anyhow::{Result, bail};

use super::report::Outcome;
use crate::scratch::Scratch;
use crate::{artifacts, command, host};

/// Of belljar-backend.
const FEATURE: &str = "belljar-backend feature \"replaceable\"";
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Checks that the product has no such registry, and what the lints say; builds the launcher and copies it away.
pub(super) fn build(into: &mut Option<Scratch>) -> Result<Outcome> {
    let of_launcher = features("belljar-remote", &["--features", "launcher"])?;
    if !of_launcher.contains(FEATURE) {
        bail!("the launcher of belljar-remote has no {FEATURE}: its name has changed");
    }
    if features("belljar", &[])?.contains(FEATURE) {
        bail!("belljar has the {FEATURE}, which is for tests only");
    }
    let mut clippy = host::cargo()?;
    clippy.args(["clippy", "-p", "belljar-remote", "--features", "launcher", "--bins"]);
    command::check(clippy.args(["--", "-D", "warnings"]), LIMIT)?;
    let directory = Scratch::new("remote")?;
    directory.copy_executable(&artifacts::build_remote_launcher()?)?;
    *into = Some(directory);
    Ok(Outcome::Passed)
}

/// What [`build`] copied.
pub(super) fn launcher(directory: &Scratch) -> String {
    directory.path().join("belljar-over-tcp").display().to_string()
}

fn features(package: &str, more: &[&str]) -> Result<String> {
    let mut tree = host::cargo()?;
    // From the backend upwards: downwards a feature that the root itself switches on is not shown.
    tree.args(["tree", "-p", package, "--edges=features", "--invert=belljar-backend"]);
    tree.arg("--prefix=none").args(more);
    command::read(&mut tree)
}
