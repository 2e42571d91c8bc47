//! The control groups that engines put their containers' below, at fixed places of the whole machine. An
//! engine of the machine's own may have made them already.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::test::remove_cgroup;

const NAMES: [&str; 2] = ["docker", "libpod_parent"];

/// Those that were there before.
pub(super) struct Groups(BTreeSet<PathBuf>);

impl Groups {
    pub(super) fn look() -> Self {
        Self(existing(Path::new("/sys/fs/cgroup")))
    }

    /// Takes the others away. The kernel removes none that has a process in it.
    pub(super) fn remove_new(&self) {
        for group in existing(Path::new("/sys/fs/cgroup")).difference(&self.0) {
            if let Err(error) = remove_cgroup(group) {
                eprintln!("warning: cannot remove the control group {}: {error}", group.display());
            }
        }
    }
}

/// In the one hierarchy, or in each of many.
fn existing(top: &Path) -> BTreeSet<PathBuf> {
    let hierarchies = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    let places = hierarchies.chain([top.to_owned()]);
    let groups = places.flat_map(|place| NAMES.map(|name| place.join(name)));
    groups.filter(|group| group.join("cgroup.procs").exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn groups_are_found_in_one_hierarchy_and_in_many() {
        let scratch = Scratch::new("groups-test").unwrap();
        for place in ["docker", "memory/libpod_parent", "memory/other", "a/b/docker"] {
            fs::create_dir_all(scratch.path().join(place)).unwrap();
            fs::write(scratch.path().join(place).join("cgroup.procs"), "").unwrap();
        }
        let wanted = ["docker", "memory/libpod_parent"].map(|place| scratch.path().join(place));
        assert_eq!(existing(scratch.path()), BTreeSet::from(wanted));
    }
}
