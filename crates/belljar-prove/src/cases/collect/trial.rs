//! A run over a tree, and the commands on what it left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::answer::Told;
use crate::stage::{Run, Seen, Stage, StageError};

/// Nobody who collects waits longer than this for something that never comes, however busy the machine is.
pub(super) const PROMPT: Duration = Duration::from_secs(90);

pub(super) struct Trial<'a> {
    pub(super) stage: &'a Stage,
    /// The real tree.
    pub(super) tree: PathBuf,
    pub(super) name: String,
}

impl<'a> Trial<'a> {
    /// A tree with `file`, `kept`, `other` and `sub/inner`.
    pub(super) fn new(stage: &'a Stage) -> Result<Self, StageError> {
        let tree = stage.workspace()?;
        stage.directory(&tree.join("sub"), 0o755)?;
        for name in ["file", "kept", "other", "sub/inner"] {
            stage.file(&tree.join(name), "original\n")?;
        }
        let name = stage.word()?;
        Ok(Self { stage, tree, name })
    }

    /// A directory that no run is given, with one file.
    pub(super) fn secrets(&self) -> Result<PathBuf, StageError> {
        let place = self.stage.place()?;
        self.stage.file(&place.join("secret"), SECRET)?;
        Ok(place)
    }

    /// The probe, from start to end.
    pub(super) fn run<W: AsRef<std::ffi::OsStr>>(
        &self,
        probe: &str,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Told, StageError> {
        let run = Run::over(&self.tree, probe, &self.name).args(words);
        self.stage.inside(&run)?.told()
    }

    pub(super) fn diff(&self, flags: &[&str]) -> Result<Seen, StageError> {
        let words = ["diff", &self.name].into_iter().chain(flags.iter().copied());
        self.done(self.stage.tool(words)?, &[0])
    }

    /// With everything named, so that nothing is held back that can be had at all.
    pub(super) fn apply(&self, paths: &[&str]) -> Result<Seen, StageError> {
        let words = ["apply", "--yes", &self.name].into_iter().chain(paths.iter().copied());
        // 1: not everything that was asked for was done.
        self.done(self.stage.tool(words)?, &[0, 1, 125])
    }

    pub(super) fn discard(&self) -> Result<Seen, StageError> {
        self.done(self.stage.tool(["discard", "--yes", &self.name])?, &[0])
    }

    fn done(&self, seen: Seen, codes: &[i32]) -> Result<Seen, StageError> {
        match seen.code {
            Some(code) if codes.contains(&code) => Ok(seen),
            _ => {
                let said: String = seen.stderr.trim().chars().take(400).collect();
                Err(StageError::Unexpected(format!("{}: {said}", seen.end())))
            }
        }
    }

    /// Where the run's version of the tree is kept.
    pub(super) fn kept(&self) -> Result<PathBuf, StageError> {
        Ok(self.stage.run_directory(&self.name)?.join("upper/0/data"))
    }

    pub(super) fn content(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.tree.join(name)).ok()
    }
}

pub(super) const SECRET: &str = "a secret that no run was given\n";

pub(super) fn says_secret(seen: &Seen) -> bool {
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
