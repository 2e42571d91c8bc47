//! Lists the processes of this machine with their parents.

use std::fs;

use anyhow::{Context, Result};

pub(crate) fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|text| text.trim().to_owned())
}

/// Only our own family is looked at: another belljar may be running on this machine.
pub(crate) fn descendants(root: u32) -> Result<Vec<u32>> {
    let parents = parents()?;
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
    }
    Ok(family)
}

/// Those whose parent this is now. Of our own, no number can come to belong to another process before
/// we have waited for it.
pub(crate) fn children(parent: u32) -> Result<Vec<u32>> {
    let found = parents()?.into_iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid);
    Ok(found.collect())
}

/// Every process with its parent.
fn parents() -> Result<Vec<(u32, u32)>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list the processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        parents.extend(parent_in(&stat).map(|parent| (pid, parent)));
    }
    Ok(parents)
}

/// The fourth field; the second is a name in brackets that may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_confuse_the_reader() {
        assert_eq!(parent_in("12 (a) S 1) R 7 1 1"), Some(7));
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn a_child_of_ours_is_found_and_a_stranger_is_not() {
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let family = descendants(std::process::id()).unwrap();
        assert!(family.contains(&child.id()));
        assert!(children(std::process::id()).unwrap().contains(&child.id()));
        assert!(!descendants(child.id()).unwrap().contains(&std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
