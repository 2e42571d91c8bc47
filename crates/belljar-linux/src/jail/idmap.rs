//! Makes user namespaces that only define how owners on disk appear through a mount.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use belljar_bind::Writer;
use belljar_bind::identity::{BLOCK_SIZE, Pair};
use rustix::io::Errno;

use crate::sys::process::Sleeper;

/// One for each owner met; most runs meet one.
#[derive(Debug)]
pub(crate) struct IdMaps {
    run: Pair,
    writer: Writer,
    made: HashMap<Pair, IdMap>,
    block: Option<IdMap>,
}

#[derive(Debug)]
struct IdMap {
    namespace: OwnedFd,
    /// Ending; nobody waits for it before the run is bound.
    _sleeper: Sleeper,
}

/// The owner of a file that root makes until its owner is set: nobody.
const NOBODY: u32 = 65534;

impl IdMaps {
    pub(crate) fn new(run: Pair, writer: Writer) -> Self {
        Self { run, writer, made: HashMap::new(), block: None }
    }

    /// A namespace in which files of `owner` are the run's, and all other files belong to nobody.
    pub(crate) fn showing(&mut self, owner: Pair) -> std::io::Result<&OwnedFd> {
        if !self.made.contains_key(&owner) {
            let made = make(owner, self.run, self.writer)?;
            self.made.insert(owner, made);
        }
        self.made.get(&owner).map(|made| &made.namespace).ok_or_else(|| Errno::NOENT.into())
    }

    /// A namespace in which the ids on disk are those of a block, in their order. A run has one block.
    pub(crate) fn block(&mut self, first: u32) -> std::io::Result<&OwnedFd> {
        if self.block.is_none() {
            let map = format!("0 {first} {BLOCK_SIZE}");
            self.block = Some(IdMap::make(&map, &map)?);
        }
        self.block.as_ref().map(|map| &map.namespace).ok_or_else(|| Errno::NOENT.into())
    }
}

fn make(on_disk: Pair, shown: Pair, writer: Writer) -> std::io::Result<IdMap> {
    let map = |on_disk: u32, shown: u32| match writer {
        Writer::RootFirst if on_disk != NOBODY => format!("{on_disk} {shown} 1\n{NOBODY} 0 1\n"),
        _ => format!("{on_disk} {shown} 1"),
    };
    IdMap::make(&map(on_disk.uid, shown.uid), &map(on_disk.gid, shown.gid))
}

impl IdMap {
    /// A namespace needs a process to be created with; it ends as soon as the descriptor is open.
    fn make(uids: &str, gids: &str) -> std::io::Result<Self> {
        let sleeper = Sleeper::in_new_user_namespace()?;
        let at = |name: &str| format!("/proc/{}/{name}", sleeper.pid.as_raw_nonzero());
        std::fs::write(at("uid_map"), uids)?;
        std::fs::write(at("gid_map"), gids)?;
        let namespace = File::open(at("ns/user"))?.into();
        sleeper.kill();
        Ok(Self { namespace, _sleeper: sleeper })
    }
}
