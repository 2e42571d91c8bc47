//! The programs that the tests use, and how to get them. Installs only what is missing, only on
//! Debian, only as root, and starts no service.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::report::Outcome;
use crate::scratch::Scratch;
use crate::{command, host};

pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

pub(crate) const fn need(program: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { program, package, why }
}

const NEEDS: [Need; 15] = [
    need("bwrap", "bubblewrap", "the peer that the start is measured against"),
    need("curl", "curl", "a client of the network, inside the jail"),
    need("gcc", "gcc", "compiles inside the jail"),
    need("git", "git", "runs inside the jail"),
    need("mke2fs", "e2fsprogs", "the guest's disk, and a small one that fills up"),
    need("mount", "mount", "the disk that fills up"),
    need("node", "nodejs", "a client of the network, inside the jail"),
    need("pip3", "python3-pip", "a client of the network, inside the jail"),
    need("python3", "python3", "runs inside the jail, and plays the attacker"),
    need("qemu-system-x86_64", "qemu-system-x86", "the guest"),
    need("redis-server", "redis-server", "runs inside the jail"),
    need("strace", "strace", "a debugger inside the jail, and faults at system calls"),
    need("unshare", "util-linux", "the floor that the start is measured against"),
    need("useradd", "passwd", "the ordinary user of the rootless tests"),
    need("wget", "wget", "a client of the network, inside the jail"),
];

/// Files of packages that have no program: a C header, since `gcc` without the C library's headers compiles
/// nothing useful, and what a library of Python's installs.
const FILES: [(&str, &str); 2] = [
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/lib/python3/dist-packages/requests/__init__.py", "python3-requests"),
];

const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// What a package's scripts call to start, stop or enable a service. They find these instead.
const SERVICE_TOOLS: [&str; 6] = [
    "deb-systemd-helper",
    "deb-systemd-invoke",
    "invoke-rc.d",
    "service",
    "systemctl",
    "update-rc.d",
];

pub(crate) fn step() -> Result<Outcome> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| need.is_missing()).collect();
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.extend(FILES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, of)| of));
    if packages.is_empty() {
        eprintln!("everything that the tests use is there");
        return Ok(Outcome::Passed);
    }
    for need in &missing {
        eprintln!("missing: {} ({})", need.program, need.why);
    }
    if !may_install() {
        return Ok(Outcome::NotChecked(format!(
            "missing programs were not installed (only done as root on Debian); tests that use \
             them cannot pass. Install (Debian's names): {}",
            packages.join(" ")
        )));
    }
    update_lists()?;
    install(&packages)?;
    for need in missing {
        host::require_program(need.program, need.package)?;
    }
    Ok(Outcome::Passed)
}

/// The same for a part of the tests that can be left out: an error says what is missing.
pub(crate) fn ensure(needs: &[&Need]) -> Result<()> {
    let missing: Vec<&&Need> = needs.iter().filter(|need| need.is_missing()).collect();
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    if !packages.is_empty() && may_install() {
        for need in &missing {
            eprintln!("missing: {} ({})", need.program, need.why);
        }
        update_lists()?;
        install(&packages)?;
    }
    look(needs)
}

/// An error names the first one that is missing, and its package.
pub(crate) fn look(needs: &[&Need]) -> Result<()> {
    for need in needs {
        host::require_program(need.program, need.package)?;
    }
    Ok(())
}

impl Need {
    fn is_missing(&self) -> bool {
        host::find_program(self.program).is_none()
    }
}

fn may_install() -> bool {
    host::is_debian() && host::is_root()
}

/// `apt-get update`. Needs root.
pub(crate) fn update_lists() -> Result<()> {
    command::check(apt_get().args(["-qq", "update"]), INSTALL_LIMIT)
}

fn install(packages: &[&str]) -> Result<()> {
    let shims = Scratch::new("no-services")?;
    for tool in SERVICE_TOOLS {
        let path = shims.path().join(tool);
        fs::write(&path, "#!/bin/sh\nexit 0\n")
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let path = format!("DPkg::Path={}:/usr/sbin:/usr/bin:/sbin:/bin", shims.path().display());
    command::check(
        apt_get()
            .args(["-qq", "-y", "--no-install-recommends", "-o", &path])
            .arg("install")
            .args(packages),
        INSTALL_LIMIT,
    )
}

/// apt-get that asks nothing, restarts nothing, and waits for another apt instead of failing.
fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("NEEDRESTART_SUSPEND", "1");
    apt
}
