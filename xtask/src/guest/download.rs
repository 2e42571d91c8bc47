//! The guest's kernel and its static busybox: Debian's packages, unpacked into the target
//! directory and kept there. Nothing is installed on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::test::packages::{Apt, unpack_archives};
use crate::{command, host};

/// A package that depends on the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";

pub(crate) struct Parts {
    pub(crate) kernel: PathBuf,
    pub(crate) modules: PathBuf,
    pub(crate) busybox: PathBuf,
}

pub(crate) fn parts(directory: &Path) -> Result<Parts> {
    let kernel = directory.join("kernel");
    if !kernel.exists() {
        let package = with_fresh_lists(newest_kernel)?;
        unpack(&package, &kernel)?;
    }
    let modules = ["lib/modules", "usr/lib/modules"].map(|place| kernel.join(place));
    let modules = modules.iter().find_map(|place| only_entry(place, ""));
    Ok(Parts {
        kernel: only_entry(&kernel.join("boot"), "vmlinuz-").with_context(|| spoiled(&kernel))?,
        modules: modules.with_context(|| spoiled(&kernel))?,
        busybox: busybox(directory)?,
    })
}

/// The static busybox alone.
pub(crate) fn busybox(directory: &Path) -> Result<PathBuf> {
    let busybox = directory.join("busybox");
    if !busybox.exists() {
        unpack(BUSYBOX, &busybox)?;
    }
    let programs = ["bin/busybox", "usr/bin/busybox"].map(|place| busybox.join(place));
    programs.into_iter().find(|file| file.exists()).with_context(|| spoiled(&busybox))
}

fn spoiled(directory: &Path) -> String {
    format!("{} does not hold what it should; remove it and try again", directory.display())
}

fn only_entry(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(directory).ok()?.flatten().map(|e| e.path()).collect();
    names.retain(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    });
    names.sort();
    names.into_iter().next()
}

fn newest_kernel() -> Result<String> {
    let text = command::read(Command::new("apt-cache").args(["depends", KERNEL]))?;
    kernel_in(&text).with_context(|| format!("apt knows no kernel that {KERNEL} depends on"))
}

fn kernel_in(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
        .map(str::to_owned)
}

/// A machine that never ran `apt-get update`, or did so long ago, gets one more try.
fn with_fresh_lists<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    match work() {
        Ok(value) => Ok(value),
        Err(error) if host::is_root() => {
            eprintln!("{error:#}; trying again with fresh package lists");
            Apt::of_this_machine().update_lists()?;
            work()
        }
        Err(error) => Err(error.context("run `apt-get update` as root and try again")),
    }
}

fn unpack(package: &str, target: &Path) -> Result<()> {
    let partial = target.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)
            .with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    eprintln!("downloading {package}");
    with_fresh_lists(|| Apt::of_this_machine().download(&[package], &partial))?;
    if only_entry(&partial, package).is_none() {
        bail!("apt-get downloaded nothing for {package}");
    }
    unpack_archives(&partial)?;
    // Under its name only when it is whole.
    fs::rename(&partial, target).with_context(|| format!("cannot name {}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_package_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-54-cloud-amd64\n";
        assert_eq!(kernel_in(text).unwrap(), "linux-image-6.1.0-54-cloud-amd64");
        assert!(kernel_in("linux-image-cloud-amd64\n  Depends: initramfs\n").is_none());
    }
}
