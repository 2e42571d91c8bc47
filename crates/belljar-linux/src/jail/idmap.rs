//! User namespaces that exist only to say how owners on disk appear through a mount.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::identity::Pair;
use crate::sys::process::Sleeper;

/// One for each owner met; most runs meet one.
#[derive(Debug)]
pub(crate) struct IdMaps {
    run: Pair,
    made: HashMap<Pair, OwnedFd>,
}

impl IdMaps {
    pub(crate) fn new(run: Pair) -> Self {
        Self { run, made: HashMap::new() }
    }

    pub(crate) fn run(&self) -> Pair {
        self.run
    }

    /// A namespace in which files of `owner` are the run's, and nobody else's are anyone's.
    pub(crate) fn showing(&mut self, owner: Pair) -> std::io::Result<&OwnedFd> {
        if !self.made.contains_key(&owner) {
            let made = make(owner, self.run)?;
            self.made.insert(owner, made);
        }
        self.made.get(&owner).ok_or_else(|| Errno::NOENT.into())
    }
}

/// A namespace needs a process to be born with; it ends as soon as the descriptor is open.
fn make(on_disk: Pair, shown: Pair) -> std::io::Result<OwnedFd> {
    let sleeper = Sleeper::in_new_user_namespace()?;
    let at = |name: &str| format!("/proc/{}/{name}", sleeper.pid.as_raw_nonzero());
    std::fs::write(at("uid_map"), format!("{} {} 1", on_disk.uid, shown.uid))?;
    std::fs::write(at("gid_map"), format!("{} {} 1", on_disk.gid, shown.gid))?;
    Ok(File::open(at("ns/user"))?.into())
}
