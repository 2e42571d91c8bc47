//! The programs that the tests use, and how to get them. Installs only what is missing, only on
//! Debian, only as root, starts no service, and removes no package: what would push one out is unpacked
//! into the target directory and used from there.

mod apt;
mod plan;
pub(crate) mod unpacked;

use std::path::Path;

use anyhow::{Result, bail};

pub(crate) use self::apt::{Apt, unpack_archives};
use super::report::Outcome;
use crate::host;

pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

pub(crate) const fn need(program: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { program, package, why }
}

/// What the guest is made with.
pub(crate) const MKE2FS: Need =
    need("mke2fs", "e2fsprogs", "the guest's disk, and a small one that fills up");
pub(crate) const QEMU: Need = need("qemu-system-x86_64", "qemu-system-x86", "the guest");
pub(crate) const XZ: Need = need("xz", "xz-utils", "unpacks the modules of the guest's kernel");

const NEEDS: [Need; 31] = [
    need("bash", "bash", "runs inside the jail"),
    need("bwrap", "bubblewrap", "the peer that the start is measured against"),
    need("curl", "curl", "a client of the network, inside the jail"),
    need("fish", "fish", "checks the completion script for fish"),
    need("gcc", "gcc", "compiles inside the jail"),
    need("gdb", "gdb", "a debugger inside the jail"),
    need("getent", "libc-bin", "looks names up"),
    need("git", "git", "runs inside the jail"),
    need("groff", "groff-base", "renders the manual pages"),
    need("losetup", "mount", "the disk that fills up"),
    MKE2FS,
    need("mkfs.btrfs", "btrfs-progs", "a file system that shares blocks"),
    need("mount", "mount", "the disk that fills up"),
    need("node", "nodejs", "a client of the network, inside the jail"),
    need("patch", "patch", "applies what belljar writes as a patch"),
    need("perl", "perl-base", "a client and a server, inside the jail"),
    need("pip3", "python3-pip", "a client of the network, inside the jail"),
    need("kill", "procps", "ends what a test started"),
    need("ps", "procps", "runs inside the jail"),
    need("python3", "python3", "runs inside the jail, and plays the attacker"),
    QEMU,
    need("redis-server", "redis-server", "runs inside the jail"),
    need("ssh-keygen", "openssh-client", "an engine that is reached by ssh"),
    need("sshd", "openssh-server", "an engine that is reached by ssh"),
    need("strace", "strace", "a debugger inside the jail, and faults at system calls"),
    need("tar", "tar", "packs images"),
    need("unshare", "util-linux", "the floor that the start is measured against"),
    need("useradd", "passwd", "the ordinary user of the rootless tests"),
    need("wget", "wget", "a client of the network, inside the jail"),
    need("zsh", "zsh", "checks the completion script for zsh"),
    XZ,
];

/// Files of packages that have no program: a C header, since `gcc` without the C library's headers compiles
/// nothing useful, and what a library of Python's installs.
const FILES: [(&str, &str); 2] = [
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/lib/python3/dist-packages/requests/__init__.py", "python3-requests"),
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
    install(&packages, &missing)?;
    look(&missing)?;
    if let Some((file, package)) = FILES.iter().find(|(file, _)| !Path::new(file).exists()) {
        bail!("{package} is installed, and {file} is not there");
    }
    Ok(Outcome::Passed)
}

/// The same for a part of the tests that can be left out: an error names what is missing.
pub(crate) fn ensure(needs: &[&Need]) -> Result<()> {
    let missing: Vec<&Need> = needs.iter().copied().filter(|need| need.is_missing()).collect();
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    if !packages.is_empty() && may_install() {
        for need in &missing {
            eprintln!("missing: {} ({})", need.program, need.why);
        }
        install(&packages, &missing)?;
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
    pub(crate) fn program(&self) -> &'static str {
        self.program
    }

    pub(crate) fn package(&self) -> &'static str {
        self.package
    }

    fn is_missing(&self) -> bool {
        host::find_program(self.program).is_none()
    }
}

fn may_install() -> bool {
    host::is_debian() && host::is_root()
}

/// Installs, or unpacks what cannot be installed without removing something. Needs root.
fn install(packages: &[&str], needs: &[&Need]) -> Result<()> {
    let apt = Apt::of_this_machine();
    apt.update_lists()?;
    let plan::Plan { install, unpack_only } =
        plan::plan(packages, |packages| apt.simulate(packages))?;
    if !install.is_empty() {
        apt.install(&install)?;
    }
    for one in unpack_only {
        eprintln!(
            "{} is unpacked in the target directory: installing it would remove {}",
            one.package,
            one.would_remove.join(", ")
        );
        let of_it = needs.iter().filter(|need| need.package == one.package);
        let programs: Vec<&str> = of_it.map(|need| need.program).collect();
        unpacked::unpack(&apt, &one, &programs, &host::target_directory()?)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "provided_tests.rs"]
mod provided_tests;
