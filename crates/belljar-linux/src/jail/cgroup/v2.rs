//! cgroup v2: one directory in the unified hierarchy.

use std::path::{Path, PathBuf};

use belljar_spec::Limits;
use belljar_sys::mountinfo::MountTable;

use super::{
    CgroupError, Controller, TOP, is_read_only, make_directory, set_and_verify, verify_value, write,
};

const CONTROLLERS: &str = "+memory +pids +cpu";

/// The directory in which groups of runs can be made.
pub(super) fn detect(table: &MountTable, current: &str, is_root: bool) -> Option<PathBuf> {
    let mount = table.of_type("cgroup2").next()?;
    let root = &mount.mount_point;
    if is_read_only(mount) {
        return None; // as in a container
    }
    if is_root {
        return has_controllers(root).then(|| root.join(TOP));
    }
    let current = current.lines().find_map(|line| line.strip_prefix("0::"))?;
    let current = root.join(current.trim_start_matches('/'));
    // The highest group above us that is ours to arrange: that is what was delegated.
    let delegated = current
        .ancestors()
        .take_while(|directory| directory.starts_with(root) && is_ours(directory))
        .last()?
        .to_owned();
    has_controllers(&delegated).then_some(delegated)
}

fn is_ours(directory: &Path) -> bool {
    ["cgroup.procs", "cgroup.subtree_control"]
        .iter()
        .all(|file| rustix::fs::access(directory.join(file), rustix::fs::Access::WRITE_OK).is_ok())
        && rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

fn has_controllers(directory: &Path) -> bool {
    let list = belljar_sys::kernel_file::read_text(directory.join("cgroup.controllers"))
        .unwrap_or_default();
    list.split_whitespace().any(|name| name == "memory")
}

pub(super) fn holds(parent: &Path, controller: Controller) -> Result<String, (String, String)> {
    // Root's directory may not exist yet; the one above it decides.
    let at = if parent.is_dir() { parent } else { parent.parent().unwrap_or(parent) };
    let list =
        belljar_sys::kernel_file::read_text(at.join("cgroup.controllers")).unwrap_or_default();
    if list.split_whitespace().any(|name| name == controller.name()) {
        return Ok(format!("cgroup v2 {} controller, read back", controller.name()));
    }
    Err((
        format!("the {} controller is not delegated in {}", controller.name(), at.display()),
        super::SETUP_FIX.to_owned(),
    ))
}

pub(super) fn directory_of(parent: &Path, run: &str) -> PathBuf {
    parent.join(run)
}

#[derive(Debug)]
pub(super) struct GroupV2 {
    directory: PathBuf,
}

impl GroupV2 {
    pub(super) fn make(parent: &Path, run: &str, limits: &Limits) -> Result<Self, CgroupError> {
        if !parent.is_dir() {
            if let Some(above) = parent.parent() {
                enable(above)?;
            }
            make_directory(parent)?;
        }
        enable(parent)?;
        let directory = directory_of(parent, run);
        make_directory(&directory)?;
        let group = Self { directory };
        if let Err(error) = group.set(limits) {
            let _ = std::fs::remove_dir(&group.directory); // the error that matters is the first one
            return Err(error);
        }
        Ok(group)
    }

    fn set(&self, limits: &Limits) -> Result<(), CgroupError> {
        let at = |file: &str| self.directory.join(file);
        if let Some(bytes) = limits.memory {
            set_and_verify(&at("memory.max"), &bytes.to_string())?;
            if at("memory.swap.max").exists() {
                set_and_verify(&at("memory.swap.max"), "0")?;
            }
        }
        if let Some(millicpus) = limits.millicpus {
            let quota = (u64::from(millicpus) * 100).max(1000);
            set_and_verify(&at("cpu.max"), &format!("{quota} 100000"))?;
        }
        if let Some(pids) = limits.pids {
            set_and_verify(&at("pids.max"), &pids.to_string())?;
        }
        Ok(())
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Another process set the limits: they must read as requested.
pub(super) fn verify(directory: &Path, limits: &Limits) -> Result<(), CgroupError> {
    let wanted = [
        ("memory.max", limits.memory.map(|bytes| bytes.to_string())),
        ("pids.max", limits.pids.map(|pids| pids.to_string())),
        (
            "cpu.max",
            limits.millicpus.map(|millicpus| format!("{} 100000", u64::from(millicpus) * 100)),
        ),
    ];
    wanted
        .into_iter()
        .filter_map(|(file, value)| Some((file, value?)))
        .try_for_each(|(file, value)| verify_value(&directory.join(file), &value))
}

/// Hands the controllers down. A group that holds processes itself cannot do that, so where we sit in
/// the delegated group ourselves, we move into a leaf of it first.
fn enable(parent: &Path) -> Result<(), CgroupError> {
    let control = parent.join("cgroup.subtree_control");
    let have = belljar_sys::kernel_file::read_text(&control).unwrap_or_default();
    if ["memory", "pids", "cpu"]
        .iter()
        .all(|wanted| have.split_whitespace().any(|name| name == *wanted))
    {
        return Ok(());
    }
    if write(&control, CONTROLLERS).is_ok() {
        return Ok(());
    }
    let leaf = parent.join("belljar-launchers");
    make_directory(&leaf)?;
    write(&leaf.join("cgroup.procs"), &std::process::id().to_string())?;
    write(&control, CONTROLLERS)
}
