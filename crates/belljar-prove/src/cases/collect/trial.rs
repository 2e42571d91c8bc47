//! Runs a probe over a tree, and belljar's commands on the result.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::probe_report::ProbeReport;
use crate::testbed::{ProcessOutput, Run, TestBed, TestBedError};

/// A collecting command that takes longer is stuck, even on a busy machine.
pub(super) const PROMPT: Duration = Duration::from_secs(90);

pub(super) struct Trial<'a> {
    pub(super) testbed: &'a TestBed,
    /// The real tree.
    pub(super) tree: PathBuf,
    pub(super) name: String,
}

impl<'a> Trial<'a> {
    /// A tree with `file`, `kept`, `other` and `sub/inner`.
    pub(super) fn new(testbed: &'a TestBed) -> Result<Self, TestBedError> {
        let tree = testbed.workspace()?;
        testbed.directory(&tree.join("sub"), 0o755)?;
        for name in ["file", "kept", "other", "sub/inner"] {
            testbed.file(&tree.join(name), "original\n")?;
        }
        let name = testbed.unique_name()?;
        Ok(Self { testbed, tree, name })
    }

    /// A directory that no run is given, with one file.
    pub(super) fn secrets(&self) -> Result<PathBuf, TestBedError> {
        let place = self.testbed.place()?;
        self.testbed.file(&place.join("secret"), SECRET)?;
        Ok(place)
    }

    /// The probe, from start to end.
    pub(super) fn run<W: AsRef<std::ffi::OsStr>>(
        &self,
        probe: &str,
        argv: impl IntoIterator<Item = W>,
    ) -> Result<ProbeReport, TestBedError> {
        let run = Run::over(&self.tree, probe, &self.name).args(argv);
        self.testbed.inside(&run)?.report()
    }

    pub(super) fn diff(&self, flags: &[&str]) -> Result<ProcessOutput, TestBedError> {
        let argv = ["diff", &self.name].into_iter().chain(flags.iter().copied());
        self.done(self.testbed.tool(argv)?, &[0])
    }

    /// With everything named, so that nothing is held back that can be had at all.
    pub(super) fn apply(&self, paths: &[&str]) -> Result<ProcessOutput, TestBedError> {
        let argv = ["apply", "--yes", &self.name].into_iter().chain(paths.iter().copied());
        // 1: not everything that was asked for was done.
        self.done(self.testbed.tool(argv)?, &[0, 1, 125])
    }

    pub(super) fn discard(&self) -> Result<ProcessOutput, TestBedError> {
        self.done(self.testbed.tool(["discard", "--yes", &self.name])?, &[0])
    }

    fn done(&self, seen: ProcessOutput, codes: &[i32]) -> Result<ProcessOutput, TestBedError> {
        match seen.code {
            Some(code) if codes.contains(&code) => Ok(seen),
            _ => {
                let error_text: String = seen.stderr.trim().chars().take(400).collect();
                Err(TestBedError::Unexpected(format!("{}: {error_text}", seen.end())))
            }
        }
    }

    /// The directory with the run's version of the tree.
    pub(super) fn kept(&self) -> Result<PathBuf, TestBedError> {
        Ok(self.testbed.run_directory(&self.name)?.join("upper/0/data"))
    }

    pub(super) fn content(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.tree.join(name)).ok()
    }
}

pub(super) const SECRET: &str = "a secret that no run was given\n";

pub(super) fn says_secret(seen: &ProcessOutput) -> bool {
    let secret = SECRET.trim_end().as_bytes();
    let has = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
    has(&seen.stdout) || has(seen.stderr.as_bytes())
}

/// What is written in a hurry: reads every path below a directory, through whatever is there.
pub(super) fn collect_naively(directory: &Path, into: &mut Vec<(OsString, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => collect_naively(&path, into),
            Ok(found) if found.is_file() && found.len() < 1 << 20 => {
                into.extend(std::fs::read(&path).ok().map(|content| (entry.file_name(), content)));
            }
            _ => {}
        }
    }
}

/// Whether such a program got hold of the secret.
pub(super) fn naive_has_secret(directory: &Path) -> bool {
    let mut got = Vec::new();
    collect_naively(directory, &mut got);
    got.iter().any(|(_, content)| content == SECRET.as_bytes())
}
