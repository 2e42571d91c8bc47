//! What people do by hand to be able to go back: a commit, a copy of what changed, a second tree.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::LoopBench;
use super::work::Work;
use crate::bench::identity::Identity;
use crate::command;

const LIMIT: Duration = Duration::from_secs(300);
const COMMIT: &str = "git add -A && git commit -q -m checkpoint";

pub(super) enum How {
    /// `git add -A && git commit`
    Commit,
    /// `cp -a` of a directory that holds nothing but what ever changed.
    CopyOfChanges {
        to: PathBuf,
    },
    Rsync {
        to: PathBuf,
    },
}

/// One way, with a tree of its own.
pub(super) struct ByHand<'a> {
    identity: &'a Identity,
    work: Work,
    tree: PathBuf,
    how: How,
    taken: Vec<Duration>,
    on_disk: Vec<Duration>,
}

impl<'a> ByHand<'a> {
    pub(super) fn commit(bench: &LoopBench<'a>, work: Work) -> Result<Self> {
        Ok(Self::new(bench.identity, work, copied(bench, "by-git")?, How::Commit))
    }

    pub(super) fn copy_of_changes(bench: &LoopBench<'a>, work: Work) -> Result<Self> {
        let own = &bench.identity.workspace;
        let layer = own.join("layer");
        let mut make = bench.identity.command(Path::new("mkdir"));
        make.arg("-p").args(work.written_in().iter().map(|directory| layer.join(directory)));
        command::check(&mut make, LIMIT)?;
        Ok(Self::new(bench.identity, work, layer, How::CopyOfChanges { to: own.join("copy") }))
    }

    pub(super) fn rsync(bench: &LoopBench<'a>, work: Work) -> Result<Self> {
        let how = How::Rsync { to: copied(bench, "rsync-to")? };
        Ok(Self::new(bench.identity, work, copied(bench, "rsync-from")?, how))
    }

    fn new(identity: &'a Identity, work: Work, tree: PathBuf, how: How) -> Self {
        Self { identity, work, tree, how, taken: Vec::new(), on_disk: Vec::new() }
    }

    /// Of its row, and of what is compared with it.
    pub(super) fn names(&self) -> (&'static str, &'static str) {
        match self.how {
            How::Commit => ("git add -A && git commit", "to git"),
            How::CopyOfChanges { .. } => ("cp -a of the changed files", "to cp"),
            How::Rsync { .. } => ("rsync -a --delete", "to rsync"),
        }
    }

    /// The same changes as the agent's, and then what keeps them. Only that is measured.
    pub(super) fn once(&mut self, number: usize) -> Result<()> {
        if let How::CopyOfChanges { to } = &self.how
            && to.exists()
        {
            fs::remove_dir_all(to).context("cannot remove a copy")?;
        }
        rustix::fs::sync();
        change(self.identity, &self.tree, self.work, number)?;
        let mut keep = self.command();
        keep.stdin(Stdio::null()).stdout(Stdio::null());
        let begun = Instant::now();
        self.taken.push(command::timed(&mut keep)?);
        let tree = File::open(&self.tree).context("cannot open a tree")?;
        rustix::fs::syncfs(&tree).context("cannot bring a tree to disk")?;
        self.on_disk.push(begun.elapsed());
        Ok(())
    }

    fn command(&self) -> Command {
        match &self.how {
            How::Commit => git_by_shell(self.identity, &self.tree, COMMIT),
            How::CopyOfChanges { to } => {
                let mut copy = self.identity.command(Path::new("cp"));
                copy.args(["-a", "--reflink=auto"]).arg(&self.tree).arg(to);
                copy
            }
            How::Rsync { to } => {
                let mut rsync = self.identity.command(Path::new("rsync"));
                rsync.args(["-a", "--delete", "--exclude=.git"]);
                rsync.arg(self.tree.join("")).arg(to); // what is in it, not itself
                rsync
            }
        }
    }

    /// Until the command ended, and until all of it was on disk; without the first.
    pub(super) fn times(self) -> [Vec<Duration>; 2] {
        [self.taken, self.on_disk].map(|times| times.into_iter().skip(1).collect())
    }
}

/// Of the large tree, with its repository.
pub(super) fn copied(bench: &LoopBench<'_>, name: &str) -> Result<PathBuf> {
    let to = bench.identity.workspace.join(name);
    let mut copy = bench.identity.command(Path::new("cp"));
    copy.arg("-a").arg(bench.tree).arg(&to);
    command::check(&mut copy, LIMIT)?;
    Ok(to)
}

pub(super) fn change(identity: &Identity, tree: &Path, work: Work, number: usize) -> Result<()> {
    let mut shell = identity.command(Path::new("sh"));
    shell.args(["-c", &format!("n={number}; {}", work.script())]).current_dir(tree);
    command::check(&mut shell, LIMIT)
}

/// Nothing that git would start in the background.
pub(super) fn git_by_shell(identity: &Identity, tree: &Path, script: &str) -> Command {
    let settings = ["gc.auto=0", "maintenance.auto=false", "user.name=a", "user.email=a@b"];
    let mut git = identity.command(Path::new("sh"));
    git.args(["-c", script]).current_dir(tree);
    git.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (number, setting) in settings.iter().enumerate() {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        git.env(format!("GIT_CONFIG_KEY_{number}"), key);
        git.env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    git
}
