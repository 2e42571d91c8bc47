//! What the launcher bound, and so what an attestation has to say. Compared before anything runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attest::{Answer, Attestation, SeenMount};
use crate::runspec::User;
use crate::text::OsText;

/// The open call's answers to what is not there or not ours.
const ENOENT: i32 = 2;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const ENOSYS: i32 = 38;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedMount {
    pub target: OsText,
    /// Device and inode of the source. `None` for what is made for the run: its type is compared.
    pub identity: Option<(u64, u64)>,
    pub fstype: Option<String>,
    pub read_only: bool,
    /// Device nodes work in this mount (the bound ones of `/dev`).
    pub devices: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    pub user: User,
    pub uid_map: String,
    pub gid_map: String,
    /// Supplementary groups, as seen inside. An ordinary user cannot drop its own.
    pub groups: Vec<u32>,
    pub mounts: Vec<ExpectedMount>,
    pub seccomp_filters: u32,
    pub landlock: u32,
    pub rlimits: BTreeMap<String, u64>,
    pub environment: Vec<OsText>,
    pub writable: Vec<OsText>,
}

impl Expectation {
    /// Everything that is not as it was bound. Empty means: let it go.
    pub fn compare(&self, seen: &Attestation) -> Vec<String> {
        let mut wrong = Vec::new();
        self.compare_identity(seen, &mut wrong);
        self.compare_privileges(seen, &mut wrong);
        self.compare_mounts(seen, &mut wrong);
        self.compare_surroundings(seen, &mut wrong);
        compare_attempts(seen, &mut wrong);
        wrong
    }

    fn compare_identity(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        let User { uid, gid } = self.user;
        let ids = [seen.uids.real, seen.uids.effective, seen.uids.saved];
        if ids != [uid; 3] {
            wrong.push(format!("the uids are {ids:?}, not {uid}"));
        }
        let ids = [seen.gids.real, seen.gids.effective, seen.gids.saved];
        if ids != [gid; 3] {
            wrong.push(format!("the gids are {ids:?}, not {gid}"));
        }
        for (what, expected, found) in
            [("uid", &self.uid_map, &seen.uid_map), ("gid", &self.gid_map, &seen.gid_map)]
        {
            if expected != found {
                wrong.push(format!("the {what} map is \"{found}\", not \"{expected}\""));
            }
        }
        if self.groups != seen.groups {
            wrong.push(format!("the groups are {:?}, not {:?}", seen.groups, self.groups));
        }
        if seen.parent != 1 {
            wrong.push(format!("the parent is process {}, not 1", seen.parent));
        }
    }

    fn compare_privileges(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        if !seen.capabilities.are_empty() {
            wrong.push(format!("capabilities are left: {:?}", seen.capabilities));
        }
        if !seen.no_new_privileges {
            wrong.push("no-new-privileges is not set".to_owned());
        }
        if seen.seccomp_mode != 2 || seen.seccomp_filters < self.seccomp_filters {
            wrong.push(format!(
                "{} system call filters in mode {}, not {} in mode 2",
                seen.seccomp_filters, seen.seccomp_mode, self.seccomp_filters
            ));
        }
        if seen.landlock < self.landlock {
            wrong.push(format!("Landlock version {}, not {}", seen.landlock, self.landlock));
        }
        for (name, value) in &self.rlimits {
            if seen.rlimits.get(name) != Some(value) {
                wrong.push(format!("rlimit {name} is {:?}, not {value}", seen.rlimits.get(name)));
            }
        }
    }

    fn compare_mounts(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        // The last mount at a place is the one that is visible there.
        let found: BTreeMap<&OsText, &SeenMount> =
            seen.mounts.iter().map(|mount| (&mount.target, mount)).collect();
        let expected: BTreeMap<&OsText, &ExpectedMount> =
            self.mounts.iter().map(|mount| (&mount.target, mount)).collect();
        for (target, want) in &expected {
            match found.get(target) {
                None => wrong.push(format!("nothing is mounted at {target}")),
                Some(mount) => compare_mount(want, mount, wrong),
            }
        }
        for target in found.keys().filter(|target| !expected.contains_key(**target)) {
            wrong.push(format!("{target} is mounted and is not in the plan"));
        }
    }

    fn compare_surroundings(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        if seen.interfaces.iter().any(|name| name != "lo") {
            wrong.push(format!("network interfaces: {:?}, not only lo", seen.interfaces));
        }
        if let Some(open) = seen.descriptors.iter().find(|open| open.number > 2) {
            wrong.push(format!("descriptor {} is open ({})", open.number, open.refers_to));
        }
        if seen.environment != self.environment {
            wrong.push(format!(
                "the environment is {:?}, not {:?}",
                seen.environment, self.environment
            ));
        }
        for place in self.writable.iter().filter(|place| !seen.wrote.contains(place)) {
            wrong.push(format!("{place} should be writable and is not"));
        }
    }
}

fn compare_mount(want: &ExpectedMount, found: &SeenMount, wrong: &mut Vec<String>) {
    let target = &want.target;
    if let Some((device, inode)) = want.identity
        && (device, inode) != (found.device, found.inode)
    {
        wrong.push(format!(
            "{target} is device {} inode {}, not device {device} inode {inode}",
            found.device, found.inode
        ));
    }
    if let Some(fstype) = &want.fstype
        && *fstype != found.fstype
    {
        wrong.push(format!("{target} is of type {}, not {fstype}", found.fstype));
    }
    if want.read_only && !found.read_only {
        wrong.push(format!("{target} is writable"));
    }
    if !found.nosuid {
        wrong.push(format!("{target} honours setuid files"));
    }
    if !want.devices && !found.nodev {
        wrong.push(format!("{target} honours device nodes"));
    }
}

fn compare_attempts(seen: &Attestation, wrong: &mut Vec<String>) {
    if seen.attempts.is_empty() {
        wrong.push("no forbidden call was tried".to_owned());
    }
    for attempt in &seen.attempts {
        match attempt.answer {
            Answer::Errno(EPERM | EACCES | ENOENT | ENOSYS) => {}
            Answer::Errno(other) => {
                wrong.push(format!("{} failed with error {other}", attempt.call))
            }
            Answer::Succeeded => wrong.push(format!("{} worked", attempt.call)),
        }
    }
}
