//! What the launcher bound, and so what an attestation must contain. Compared before anything runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attest::{
    AttemptResult, Attestation, BriefAttestation, CapabilitySets, Ids, InitState, SeenDescriptor,
    SeenMount,
};
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
    /// An engine mounts without `nosuid`; no-new-privileges is what holds there.
    #[serde(default)]
    pub suid: bool,
}

/// Which kernel has to answer inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedKernel {
    /// Nothing is promised about it.
    #[default]
    Any,
    /// A namespace of the sandbox: not this one, which is the host's.
    OtherThan(String),
}

/// What an engine puts into every container besides the plan's mounts: kernel file systems and small generated
/// files. Each may be there or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToleratedMount {
    pub target: OsText,
    pub reach: MountReach,
    /// Of one of these types; any where it is empty.
    pub fstypes: Vec<String>,
    pub read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountReach {
    Exactly,
    /// The place itself and everything below it.
    AndBelow,
}

impl ToleratedMount {
    fn covers(&self, seen: &SeenMount) -> bool {
        let here = match self.reach {
            MountReach::Exactly => seen.target == self.target,
            MountReach::AndBelow => seen.target.as_path().starts_with(self.target.as_path()),
        };
        here && (self.fstypes.is_empty() || self.fstypes.contains(&seen.fstype))
            && (seen.read_only || !self.read_only)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    pub user: User,
    /// `None` where an engine decides; who the command is on the host is then seen from outside.
    pub uid_map: Option<String>,
    pub gid_map: Option<String>,
    #[serde(default)]
    pub kernel: ExpectedKernel,
    /// Supplementary groups, as seen inside. An ordinary user cannot drop its groups.
    pub groups: Vec<u32>,
    pub mounts: Vec<ExpectedMount>,
    /// Empty in the jail, where everything is in the plan.
    #[serde(default)]
    pub tolerated: Vec<ToleratedMount>,
    /// No mount of the host's may appear inside later. Engines decide that for their containers themselves.
    #[serde(default)]
    pub private_mounts: bool,
    /// Namespaces of the launcher's in which the command must not be.
    #[serde(default)]
    pub apart_from: BTreeMap<String, String>,
    /// The maximum size of each file system in memory, by its path.
    #[serde(default)]
    pub sizes: Vec<(OsText, u64)>,
    /// The kernel ends process 1 with the launcher. Elsewhere the channel's end does.
    #[serde(default)]
    pub dies_with_launcher: bool,
    /// `None` where an engine decides, as for the host name.
    #[serde(default)]
    pub init: Option<InitState>,
    #[serde(default)]
    pub hostname: Option<String>,
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

    /// The brief form, for a further command of the same sandbox, with its own environment.
    /// What all commands share was compared for the first one; the parent may be a shim of PID 1's.
    pub fn compare_brief(&self, seen: &BriefAttestation, environment: &[OsText]) -> Vec<String> {
        let mut wrong = Vec::new();
        self.compare_ids(seen.uids, seen.gids, &seen.groups, &mut wrong);
        compare_capabilities(seen.capabilities, seen.no_new_privileges, &mut wrong);
        self.compare_filter(seen.seccomp_mode, seen.seccomp_filters, &mut wrong);
        self.compare_rlimits(&seen.rlimits, &mut wrong);
        compare_descriptors(&seen.descriptors, &mut wrong);
        compare_environment(&seen.environment, environment, &mut wrong);
        wrong
    }

    fn compare_identity(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        self.compare_ids(seen.uids, seen.gids, &seen.groups, wrong);
        for (what, expected, found) in
            [("uid", &self.uid_map, &seen.uid_map), ("gid", &self.gid_map, &seen.gid_map)]
        {
            if let Some(expected) = expected
                && expected != found
            {
                wrong.push(format!("the {what} map is \"{found}\", not \"{expected}\""));
            }
        }
        if let ExpectedKernel::OtherThan(hosts) = &self.kernel
            && (*hosts == seen.kernel || seen.kernel.is_empty())
        {
            wrong.push(format!("the kernel inside is the host's ({hosts})"));
        }
        for (name, launchers) in &self.apart_from {
            match seen.namespaces.get(name) {
                Some(inside) if inside != launchers => {}
                Some(_) => wrong.push(format!("the {name} namespace is the launcher's")),
                None => wrong.push(format!("the {name} namespace was not reported")),
            }
        }
        if self.dies_with_launcher && !seen.dies_with_launcher {
            wrong.push("process 1 would outlive the launcher".to_owned());
        }
        if seen.parent != 1 {
            wrong.push(format!("the parent is process {}, not 1", seen.parent));
        }
        self.compare_init(seen, wrong);
    }

    fn compare_init(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        if let Some(expected) = self.init {
            if expected.own_session != seen.init.own_session {
                wrong.push("process 1 is in a session of another process".to_owned());
            }
            let (found, expected) = (seen.init.capabilities, expected.capabilities);
            if found != expected {
                wrong.push(format!("process 1 has the capabilities {found:x}, not {expected:x}"));
            }
        }
        if let Some(expected) = &self.hostname
            && *expected != seen.hostname
        {
            wrong.push(format!("the host name is \"{}\", not \"{expected}\"", seen.hostname));
        }
    }

    fn compare_ids(&self, uids: Ids, gids: Ids, groups: &[u32], wrong: &mut Vec<String>) {
        let User { uid, gid } = self.user;
        for (what, found, expected) in [("uids", uids, uid), ("gids", gids, gid)] {
            let ids = [found.real, found.effective, found.saved];
            if ids != [expected; 3] {
                wrong.push(format!("the {what} are {ids:?}, not {expected}"));
            }
        }
        // Engines add the command's gid to the groups once more; that grants nothing further.
        let others = |groups: &[u32]| groups.iter().copied().filter(|g| *g != gid).collect();
        let (expected, seen): (Vec<u32>, Vec<u32>) = (others(&self.groups), others(groups));
        if expected != seen {
            wrong.push(format!("the groups are {groups:?}, not {:?}", self.groups));
        }
    }

    fn compare_privileges(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        compare_capabilities(seen.capabilities, seen.no_new_privileges, wrong);
        self.compare_filter(seen.seccomp_mode, seen.seccomp_filters, wrong);
        if seen.landlock < self.landlock {
            wrong.push(format!("Landlock version {}, not {}", seen.landlock, self.landlock));
        }
        self.compare_rlimits(&seen.rlimits, wrong);
    }

    fn compare_filter(&self, mode: u32, filters: u32, wrong: &mut Vec<String>) {
        // A kernel that does not count them reads as the highest number.
        let uncounted = filters == u32::MAX && self.seccomp_filters > 0;
        if mode != 2 || filters < self.seccomp_filters || uncounted {
            wrong.push(format!(
                "{filters} system call filters in mode {mode}, not {} in mode 2",
                self.seccomp_filters
            ));
        }
    }

    fn compare_rlimits(&self, seen: &BTreeMap<String, u64>, wrong: &mut Vec<String>) {
        for (name, value) in &self.rlimits {
            if seen.get(name) != Some(value) {
                wrong.push(format!("rlimit {name} is {:?}, not {value}", seen.get(name)));
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
        for (target, limit) in &self.sizes {
            // One that is missing, or of another type, was reported above.
            match found.get(target) {
                Some(mount) if mount.fstype != "tmpfs" => {}
                Some(mount) if mount.size.is_some_and(|size| size <= *limit) => {}
                Some(mount) => {
                    wrong.push(format!("{target} holds {:?} bytes, not {limit}", mount.size));
                }
                None => {}
            }
        }
        for mount in &seen.mounts {
            let target = &mount.target;
            let tolerated = self.tolerated.iter().any(|tolerated| tolerated.covers(mount));
            if !expected.contains_key(target) && !tolerated {
                let fstype = &mount.fstype;
                wrong.push(format!("{target} ({fstype}) is mounted and is not in the plan"));
            }
            if self.private_mounts && mount.propagates {
                wrong.push(format!("{target} receives mounts that are made elsewhere"));
            }
        }
    }

    fn compare_surroundings(&self, seen: &Attestation, wrong: &mut Vec<String>) {
        if seen.interfaces.iter().any(|name| name != "lo") {
            wrong.push(format!("network interfaces: {:?}, not only lo", seen.interfaces));
        }
        compare_descriptors(&seen.descriptors, wrong);
        compare_environment(&seen.environment, &self.environment, wrong);
        for place in self.writable.iter().filter(|place| !seen.wrote.contains(place)) {
            wrong.push(format!("{place} should be writable and is not"));
        }
    }
}

fn compare_capabilities(sets: CapabilitySets, no_new_privileges: bool, wrong: &mut Vec<String>) {
    if !sets.are_empty() {
        wrong.push(format!("capabilities are left: {sets:?}"));
    }
    if !no_new_privileges {
        wrong.push("no-new-privileges is not set".to_owned());
    }
}

fn compare_descriptors(seen: &[SeenDescriptor], wrong: &mut Vec<String>) {
    if let Some(open) = seen.iter().find(|open| open.number > 2) {
        wrong.push(format!("descriptor {} is open ({})", open.number, open.refers_to));
    }
}

fn compare_environment(seen: &[OsText], expected: &[OsText], wrong: &mut Vec<String>) {
    if seen != expected {
        wrong.push(format!("the environment is {seen:?}, not {expected:?}"));
    }
}

fn compare_mount(want: &ExpectedMount, found: &SeenMount, wrong: &mut Vec<String>) {
    let target = &want.target;
    if found.covered {
        wrong.push(format!("another mount covers {target}"));
    }
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
    if !want.suid && !found.nosuid {
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
            AttemptResult::Errno(EPERM | EACCES | ENOENT | ENOSYS) => {}
            AttemptResult::Errno(other) => {
                wrong.push(format!("{} failed with error {other}", attempt.call))
            }
            AttemptResult::Succeeded => wrong.push(format!("{} worked", attempt.call)),
        }
    }
}

#[cfg(test)]
mod tests;
