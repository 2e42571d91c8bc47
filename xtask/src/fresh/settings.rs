//! The settings of this machine that the tree needs to reach the same archives: apt's sources and how they are
//! reached, the resolver, and added certificate authorities.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;

const LIMIT: Duration = Duration::from_secs(120);

/// Copied as they are, where they exist.
const COPIED: [&str; 12] = [
    "etc/apt/auth.conf",
    "etc/apt/auth.conf.d",
    "etc/apt/keyrings",
    "etc/apt/preferences",
    "etc/apt/preferences.d",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg",
    "etc/apt/trusted.gpg.d",
    "etc/hosts",
    "usr/local/share/ca-certificates",
    "usr/share/keyrings",
];

/// Of apt's settings only how archives are reached: hooks belong to programs that the tree does not have.
const APT_SETTINGS: [&str; 6] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::Check-Valid-Until ",
    "Acquire::ForceIPv4 ",
    "Acquire::ForceIPv6 ",
    "Acquire::Max-ValidTime ",
];

/// Downloaded packages are kept for the next run, and a tree that is thrown away is not synced.
const OWN_APT_SETTINGS: &str = "\
APT::Keep-Downloaded-Packages \"true\";
DPkg::Options { \"--force-unsafe-io\"; };
";

pub(super) fn write(root: &Path) -> Result<()> {
    for name in COPIED {
        copy(&Path::new("/").join(name), &root.join(name))?;
    }
    let dump = command::read(Command::new("apt-config").args(["dump", "Acquire"]))?;
    let settings = how_archives_are_reached(&dump) + OWN_APT_SETTINGS;
    let file = root.join("etc/apt/apt.conf.d/90-of-the-host");
    // They may hold a password.
    fs::write(&file, "")
        .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))
        .and_then(|()| fs::write(&file, settings))
        .with_context(|| format!("cannot write {}", file.display()))?;
    // A link on machines with systemd-resolved, whose target the tree has not.
    let resolver = root.join("etc/resolv.conf");
    let _ = fs::remove_file(&resolver); // debootstrap's
    fs::copy("/etc/resolv.conf", &resolver).context("cannot copy /etc/resolv.conf")?;
    let mut update = Command::new("chroot");
    update.arg(root).args(["/usr/sbin/update-ca-certificates"]).env_clear();
    update.stdout(Stdio::null());
    command::check(update.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), LIMIT)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let mut cp = Command::new("cp");
    cp.args(["--archive", "--dereference", "--no-target-directory"]).arg(from).arg(to);
    command::check(&mut cp, LIMIT)
}

fn how_archives_are_reached(dump: &str) -> String {
    let wanted = |line: &&str| APT_SETTINGS.iter().any(|prefix| line.starts_with(prefix));
    dump.lines().filter(wanted).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_how_archives_are_reached_is_taken() {
        let dump = "Acquire::http \"\";\nAcquire::http::Proxy \"http://p:1\";\n\
                    Acquire::Check-Valid-Until \"false\";\nDPkg::Post-Invoke:: \"rm -f x\";\n";
        let taken = "Acquire::http::Proxy \"http://p:1\";\nAcquire::Check-Valid-Until \"false\";\n";
        assert_eq!(how_archives_are_reached(dump), taken);
    }
}
