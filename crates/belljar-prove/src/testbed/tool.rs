//! Runs other belljar commands on the result of a run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{LIMIT, ProcessOutput, Run, TestBed, TestBedError, process};

impl TestBed {
    /// Runs a belljar command as the user that starts the runs.
    pub(crate) fn tool<W: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = W>,
    ) -> Result<ProcessOutput, TestBedError> {
        let mut command = self.launcher(Vec::new());
        command.args(argv);
        process::to_the_end(&mut command, "the command", LIMIT)
    }

    /// The directory of a run that has a name.
    pub(crate) fn run_directory(&self, name: &str) -> Result<PathBuf, TestBedError> {
        let seen = self.tool(["show", "--json", name])?;
        let report: serde_json::Value = serde_json::from_slice(&seen.stdout)
            .map_err(|_| TestBedError::Unexpected(format!("show: {}", seen.stderr)))?;
        let id = report["run"]["id"].as_str().unwrap_or_default();
        Ok(self.belljar_home().join("runs").join(id))
    }
}

impl Run {
    /// A probe in a workspace that has one, and that it changes only for itself.
    pub(crate) fn over(workspace: &Path, probe: &str, name: &str) -> Self {
        let mut run = Self::of(workspace, probe);
        let mut spelled = workspace.as_os_str().to_owned();
        spelled.push(":overlay");
        run.flags = vec!["--workspace".into(), spelled, "--name".into(), name.into()];
        run
    }
}
