//! Trees of Debian's minimal system, made by debootstrap once and kept: for a machine on which nothing was installed, and
//! for an image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::test::packages::Apt;
use crate::{command, host};

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The tree of this machine's release, with these packages beside those that Debian calls essential.
pub(crate) fn ensure(bases: &Path, beside: &[&str]) -> Result<PathBuf> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let release = codename(&text).context("/etc/os-release names no VERSION_CODENAME")?;
    let name: Vec<&str> = [release].into_iter().chain(beside.iter().copied()).collect();
    let base = bases.join(name.join("+"));
    if base.exists() {
        return Ok(base);
    }
    let mirror = mirror(release)?;
    let partial = bases.join("partial");
    remove(&partial)?;
    let mut debootstrap = Command::new(host::require_program("debootstrap", "debootstrap")?);
    debootstrap.arg("--variant=minbase");
    if !beside.is_empty() {
        debootstrap.arg(format!("--include={}", beside.join(",")));
    }
    debootstrap.arg(release).arg(&partial).arg(mirror);
    if let Some(proxy) = apt_proxy() {
        debootstrap.env("http_proxy", proxy);
    }
    eprintln!("making a tree of {release} with debootstrap");
    command::check(debootstrap.stdout(Stdio::null()), LIMIT)?;
    // Under its name only when it is whole.
    fs::rename(&partial, &base).with_context(|| format!("cannot name {}", base.display()))?;
    Ok(base)
}

/// Where apt on this machine gets its own release from; other releases are there too.
pub(crate) fn own_mirror() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    mirror(codename(&text).context("/etc/os-release names no VERSION_CODENAME")?)
}

/// In place of the copy that an earlier run has used.
pub(crate) fn copy(base: &Path, root: &Path) -> Result<()> {
    remove(root)?;
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--reflink=auto", "--one-file-system"]).arg(base).arg(root);
    command::check(&mut copy, LIMIT)
}

/// Nothing is ever mounted there outside a namespace that is gone by now; `--one-file-system` for all that.
fn remove(tree: &Path) -> Result<()> {
    if !tree.exists() {
        return Ok(());
    }
    let mut rm = Command::new("rm");
    command::check(rm.args(["--recursive", "--force", "--one-file-system"]).arg(tree), LIMIT)
}

fn codename(os_release: &str) -> Option<&str> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(value.trim_matches('"')).filter(|name| !name.is_empty())
}

/// Where apt on this machine gets this release from.
fn mirror(release: &str) -> Result<String> {
    let ask = || {
        let mut apt = Command::new("apt-get");
        apt.args(["indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"]);
        command::read(apt.arg("Created-By: Packages"))
    };
    let found = mirror_in(&ask()?, release);
    if let Some(found) = found {
        return Ok(found);
    }
    Apt::of_this_machine().update_lists()?;
    mirror_in(&ask()?, release).with_context(|| format!("apt has no archive of {release}"))
}

fn mirror_in(targets: &str, release: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (codename, component, address) = (words.next()?, words.next()?, words.next()?);
        (codename == release && component == "main").then(|| address.to_owned())
    })
}

/// debootstrap does not read apt's settings.
fn apt_proxy() -> Option<String> {
    let text = command::read(Command::new("apt-config").args(["dump", "Acquire::http::Proxy"]));
    let text = text.ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("Acquire::http::Proxy \""))?;
    let value = value.strip_suffix("\";")?;
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_and_its_archive_are_found() {
        let text = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\n";
        assert_eq!(codename(text), Some("bookworm"));
        assert_eq!(codename("NAME=x\nVERSION_CODENAME=\n"), None);
        let targets = "bookworm-security main http://a/\nbookworm contrib http://b/\n\
                       bookworm main http://c/debian/\n";
        assert_eq!(mirror_in(targets, "bookworm").as_deref(), Some("http://c/debian/"));
        assert_eq!(mirror_in(targets, "trixie"), None);
    }
}
