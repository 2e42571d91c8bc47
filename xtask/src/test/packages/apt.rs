//! apt, as far as the suite uses it. It asks nothing, restarts nothing, starts no service, and removes
//! no package that is there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;
use crate::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What a package's scripts call to start, stop or enable a service. They find these instead.
const SERVICE_TOOLS: [&str; 6] = [
    "deb-systemd-helper",
    "deb-systemd-invoke",
    "invoke-rc.d",
    "service",
    "systemctl",
    "update-rc.d",
];

/// The options that every installation and its simulation have in common.
const NO_MORE_THAN_NEEDED: &str = "--no-install-recommends";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether the lists are as new as they can be.
static UPDATED: AtomicBool = AtomicBool::new(false);

/// What an installation would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Simulation {
    /// `name=version`, dependencies included.
    pub(crate) installs: Vec<String>,
    pub(crate) removes: Vec<String>,
}

pub(crate) struct Apt {
    options: Vec<String>,
}

impl Apt {
    pub(crate) fn of_this_machine() -> Self {
        let options = ["DPkg::Lock::Timeout=300", "Acquire::Retries=3"];
        Self { options: options.map(str::to_owned).to_vec() }
    }

    /// An apt that knows another release of Debian and nothing of this machine's packages. Its files are in a directory;
    /// it only downloads.
    pub(crate) fn of_release(directory: &Path, release: &str, mirror: &str) -> Result<Self> {
        for name in ["state/lists/partial", "cache/archives/partial"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let place = directory.display();
        for (name, content) in [
            ("status", String::new()),
            ("sources.list", format!("deb [signed-by={KEYRING}] {mirror} {release} main\n")),
        ] {
            let path = directory.join(name);
            fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let options = vec![
            format!("Dir::Etc::SourceList={place}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State={place}/state"),
            format!("Dir::State::status={place}/status"),
            format!("Dir::Cache={place}/cache"),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let apt = Self { options };
        command::check(apt.get().args(["-qq", "update"]), LIMIT)?;
        Ok(apt)
    }

    /// `apt-get update`, once. Needs root.
    pub(crate) fn update_lists(&self) -> Result<()> {
        if UPDATED.load(Ordering::Relaxed) {
            return Ok(());
        }
        command::check(self.get().args(["-qq", "update"]), LIMIT)?;
        UPDATED.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Changes nothing, needs no root. `Err` is apt's message: these cannot be installed together.
    pub(crate) fn simulate(&self, packages: &[&str]) -> Result<Simulation, String> {
        let mut apt = self.get();
        apt.args(["-qq", "--simulate", NO_MORE_THAN_NEEDED, "install"]).args(packages);
        // Its words are read, so they must be the untranslated ones.
        apt.env("LC_ALL", "C").stdin(Stdio::null());
        let done = apt.output().map_err(|error| format!("cannot start apt-get: {error}"))?;
        if !done.status.success() {
            let output = [done.stdout, done.stderr].concat();
            return Err(String::from_utf8_lossy(&output).trim().to_owned());
        }
        Ok(read_simulation(&String::from_utf8_lossy(&done.stdout)))
    }

    /// Fails rather than remove a package. Needs root.
    pub(crate) fn install(&self, packages: &[&str]) -> Result<()> {
        let shims = Scratch::new("no-services")?;
        for tool in SERVICE_TOOLS {
            let path = shims.path().join(tool);
            fs::write(&path, "#!/bin/sh\nexit 0\n")
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let path = format!("DPkg::Path={}:/usr/sbin:/usr/bin:/sbin:/bin", shims.path().display());
        let mut apt = self.get();
        apt.args(["-qq", "-y", "--no-remove", NO_MORE_THAN_NEEDED, "-o", &path]);
        // A line for each package and step, which is discarded; failures are on stderr.
        apt.stdin(Stdio::null()).stdout(Stdio::null());
        command::check(apt.arg("install").args(packages), LIMIT)
    }

    /// The archives of exactly these packages (`name` or `name=version`), into a directory.
    pub(crate) fn download(&self, packages: &[&str], directory: &Path) -> Result<()> {
        let mut apt = self.get();
        // As root apt would download as a user of its own, who may not write here.
        apt.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(packages);
        command::check(apt.current_dir(directory), LIMIT)
    }

    fn get(&self) -> Command {
        let mut apt = Command::new("apt-get");
        apt.args(self.options.iter().flat_map(|option| ["-o", option]))
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("NEEDRESTART_SUSPEND", "1");
        apt
    }
}

/// Unpacks every archive of the directory into it, and removes the archives. Installs nothing.
pub(crate) fn unpack_archives(directory: &Path) -> Result<()> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .flatten();
    let archives = entries.map(|entry| entry.path());
    for archive in archives.filter(|path| path.extension().is_some_and(|kind| kind == "deb")) {
        command::check(Command::new("dpkg").arg("-x").arg(&archive).arg(directory), LIMIT)?;
        fs::remove_file(&archive)
            .with_context(|| format!("cannot remove {}", archive.display()))?;
    }
    Ok(())
}

/// `Inst NAME [OLD] (VERSION ARCHIVE [ARCH])` and `Remv NAME [OLD]`. A removal that makes room for another
/// version of the same package is no removal, and apt does not list it as one.
fn read_simulation(text: &str) -> Simulation {
    let mut found = Simulation::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("Inst"), Some(name)) => {
                let version = line.split_once('(').and_then(|(_, rest)| rest.split(' ').next());
                let version = version.map(|version| format!("{name}={version}"));
                found.installs.push(version.unwrap_or_else(|| name.to_owned()));
            }
            (Some("Remv" | "Purg"), Some(name)) => found.removes.push(name.to_owned()),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
#[path = "apt_tests.rs"]
mod tests;
