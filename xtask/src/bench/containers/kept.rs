//! An engine's own container with a sleeper in it, for its commands to work on.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::arm::EngineArm;
use crate::bench::identity::Identity;
use crate::command;

const REMOVE_LIMIT: Duration = Duration::from_secs(60);

/// Removed when dropped.
pub(in crate::bench) struct KeptContainer<'a> {
    identity: &'a Identity,
    arm: &'a EngineArm,
    pub(in crate::bench) id: String,
}

impl<'a> KeptContainer<'a> {
    /// `options`: more of `docker run`'s.
    pub(in crate::bench) fn start(
        identity: &'a Identity,
        arm: &'a EngineArm,
        options: &[&str],
    ) -> Result<Self> {
        let mut run = identity.command(Path::new("env"));
        let options = [&["--detach"], options].concat();
        run.args(arm.client_run(&options)).args(["sleep", "3600"]);
        let id = command::read(&mut run)?.trim().to_owned();
        let kept = Self { identity, arm, id };
        let output = command::read(&mut kept.exec(&["echo", "sealed"]))?;
        ensure!(output == "sealed\n", "the command in {}'s container did not run", arm.name);
        Ok(kept)
    }

    pub(in crate::bench) fn exec(&self, command: &[&str]) -> Command {
        let words = [&["exec", &self.id], command].concat();
        self.arm.client(self.identity, &words)
    }
}

impl Drop for KeptContainer<'_> {
    fn drop(&mut self) {
        let mut remove = self.arm.client(self.identity, &["rm", "--force", &self.id]);
        if !command::succeeds(&mut remove, REMOVE_LIMIT) {
            eprintln!("warning: {} keeps the container {}", self.arm.name, self.id);
        }
    }
}
