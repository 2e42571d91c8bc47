//! A control group that the user may limit its runs with.
//!
//! With systemd on cgroup v2 the user's manager has one, and gets the controllers by a drop-in. Elsewhere a directory is
//! made in each hierarchy; the kernel forgets it at a reboot.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_spec::user_cgroup;
use belljar_sys::mountinfo::MountLine;

use super::{Change, Finding, Machine, Needed, SetupError};

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
const DROP_IN: &str = "/etc/systemd/system/user@.service.d/90-belljar.conf";
const DROP_IN_CONTENT: &str = "# Made by \"belljar setup\".\n[Service]\nDelegate=cpu memory pids\n";
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
/// The files with which a process is moved into a group, of both versions.
const V1_FILES: [&str; 2] = ["cgroup.procs", "tasks"];
const V2_FILES: [&str; 3] = ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"];

pub(super) fn check(machine: &Machine) -> Result<Finding, SetupError> {
    let is_read_only = |mount: &&MountLine| mount.options.split(',').any(|option| option == "ro");
    let v1 = hierarchies(machine);
    let v2 = machine.mounts.of_type("cgroup2").next();
    // Where version 1 has the controllers, a version 2 beside it holds no limits.
    let limiting = if v1.is_empty() { Vec::from_iter(v2) } else { v1.clone() };
    let v1: Vec<&MountLine> = v1.into_iter().filter(|mount| !is_read_only(mount)).collect();
    if !limiting.is_empty() && limiting.iter().all(is_read_only) {
        return Ok(Finding::Blocked(
            "the control groups are read-only here, as in a container: limit the container itself"
                .to_owned(),
        ));
    }
    match (v1.as_slice(), v2) {
        ([], None) => Ok(Finding::Blocked("no control groups are mounted".to_owned())),
        ([], Some(mount)) if machine.path("/run/systemd/system").is_dir() => {
            by_systemd(machine, &mount.mount_point)
        }
        ([], Some(mount)) => on_v2(machine, &mount.mount_point),
        (hierarchies, _) => on_v1(machine, hierarchies),
    }
}

/// The v1 hierarchies that hold a limit, each once.
fn hierarchies(machine: &Machine) -> Vec<&MountLine> {
    let holds = |mount: &&MountLine| {
        mount.super_options.split(',').any(|option| CONTROLLERS.contains(&option))
    };
    machine.mounts.of_type("cgroup").filter(holds).collect()
}

fn by_systemd(machine: &Machine, mount: &Path) -> Result<Finding, SetupError> {
    let uid = machine.account().uid;
    let manager = mount.join(format!("user.slice/user-{uid}.slice/user@{uid}.service"));
    let has = machine.read(manager.join("cgroup.controllers"))?.unwrap_or_default();
    let has_all = CONTROLLERS.iter().all(|name| has.split_whitespace().any(|have| have == *name));
    if has_all {
        return Ok(Finding::Ready(
            "the user's systemd manager has cpu, memory and pids".to_owned(),
        ));
    }
    match machine.read(DROP_IN)? {
        Some(found) if found == DROP_IN_CONTENT => {
            return Ok(Finding::Ready(format!(
                "{DROP_IN} is there; log in again if limits are missing"
            )));
        }
        Some(_) => {
            let what = format!("{DROP_IN} has another content, and is not changed");
            return Ok(Finding::Blocked(what));
        }
        None => {}
    }
    let mut changes = Vec::new();
    let reload = machine
        .program(&SYSTEMCTL)
        .map(|systemctl| vec![systemctl.display().to_string(), "daemon-reload".to_owned()]);
    changes.extend(reload.clone().map(|command| Change::RunOnUndo { command }));
    let (path, content) = (DROP_IN.into(), DROP_IN_CONTENT.to_owned());
    changes.push(Change::File { path, content, replaces: None });
    changes.extend(reload.map(|command| Change::Run { command }));
    Ok(Finding::Needed(Needed {
        what: "systemd does not hand cpu, memory and pids to the managers of users".to_owned(),
        changes,
        note: Some("it holds from the user's next login".to_owned()),
    }))
}

fn on_v1(machine: &Machine, hierarchies: &[&MountLine]) -> Result<Finding, SetupError> {
    let places = hierarchies.iter().map(|mount| own(machine, &mount.mount_point));
    let missing: Vec<PathBuf> =
        places.filter(|place| !is_theirs(machine, place, "cgroup.procs")).collect();
    if missing.is_empty() {
        return Ok(Finding::Ready("there is one in each hierarchy, until a reboot".to_owned()));
    }
    Ok(Finding::Needed(Needed {
        what: "none is delegated to the user (cgroup v1)".to_owned(),
        changes: missing.into_iter().map(|path| directory(machine, path, &V1_FILES)).collect(),
        note: Some("it is gone after a reboot: run belljar setup again".to_owned()),
    }))
}

/// Without systemd nobody puts the user's processes there: a shell has to be moved once.
fn on_v2(machine: &Machine, mount: &Path) -> Result<Finding, SetupError> {
    let place = own(machine, mount);
    let join = format!("echo $$ | sudo tee {}/cgroup.procs", place.display());
    if is_theirs(machine, &place, "cgroup.subtree_control") {
        return Ok(Finding::Ready(format!(
            "there is one, until a reboot; a shell joins it with: {join}"
        )));
    }
    let mut changes = Vec::new();
    let control = mount.join("cgroup.subtree_control");
    let handed_down = machine.read(&control)?.unwrap_or_default();
    let has = |name: &&str| handed_down.split_whitespace().any(|have| have == *name);
    if !CONTROLLERS.iter().all(has) {
        let value = "+cpu +memory +pids".to_owned();
        changes.push(Change::Setting { path: control, value, before: None });
    }
    changes.push(directory(machine, place, &V2_FILES));
    Ok(Finding::Needed(Needed {
        what: "none is delegated to the user (cgroup v2 without systemd)".to_owned(),
        changes,
        note: Some(format!("it is gone after a reboot; a shell joins it with: {join}")),
    }))
}

fn own(machine: &Machine, mount: &Path) -> PathBuf {
    mount.join(user_cgroup(machine.account().uid))
}

fn is_theirs(machine: &Machine, place: &Path, file: &str) -> bool {
    let uid = machine.account().uid;
    let has = |path: PathBuf| std::fs::metadata(machine.path(path)).is_ok_and(|at| at.uid() == uid);
    has(place.to_owned()) && has(place.join(file))
}

fn directory(machine: &Machine, path: PathBuf, files: &[&str]) -> Change {
    let account = machine.account();
    let files = files.iter().map(|file| (*file).to_owned()).collect();
    Change::Directory { path, uid: account.uid, gid: account.gid, files }
}
