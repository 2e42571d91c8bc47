//! The first process of the new namespaces: makes the tree its root, starts the test in it, and takes the
//! end of every orphan, as a machine's init does.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};
use rustix::process::{Pid, WaitOptions, getpid, pivot_root, setsid, wait};

use super::environment;

/// The hidden command.
pub(crate) const INSIDE: &str = "__fresh-inside";
/// Where the checkout is in the tree.
const CHECKOUT: &str = "belljar";

#[derive(Debug, clap::Args)]
pub(crate) struct InsideOptions {
    root: PathBuf,
    target: PathBuf,
    archives: PathBuf,
    checkout: PathBuf,
    cargo_home: PathBuf,
    rustup_home: PathBuf,
    /// Empty if it is among cargo's own programs.
    nextest: OsString,
    /// Of `cargo xtask test` in the tree.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Only `cargo xtask test --fresh` itself starts this.
pub(crate) fn main(options: &InsideOptions) -> Result<ExitCode> {
    // Mounts would change the whole machine otherwise.
    if getpid() != Pid::INIT {
        bail!("this is not the first process of a new pid namespace");
    }
    // As init has it. A process group from outside the namespace has the number 0 inside.
    setsid().context("cannot begin a session")?;
    let root = options.root.as_path();
    mount_bind(root, root).context("cannot make the tree a mount")?;
    let tree = Tree { root };
    tree.kernel_file_systems()?;
    tree.read_only(&options.cargo_home, "root/.cargo")?;
    tree.read_only(&options.rustup_home, "root/.rustup")?;
    if !options.nextest.is_empty() {
        tree.read_only_file(Path::new(&options.nextest), "usr/local/bin/cargo-nextest")?;
    }
    // Nextest too writes below `target` of the checkout, so there has to be one.
    let mount_point = options.checkout.join("target");
    fs::create_dir_all(&mount_point)
        .with_context(|| format!("cannot make {}", mount_point.display()))?;
    tree.read_only(&options.checkout, CHECKOUT)?;
    tree.writable(&options.target, &format!("{CHECKOUT}/target"))?;
    tree.writable(&options.archives, "var/cache/apt/archives")?;
    enter(root)?;
    run(&options.arguments)
}

struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    /// A /proc of the new pid namespace that nothing covers: only then the kernel lets a user namespace
    /// mount one of its own. Devices and control groups are the machine's.
    fn kernel_file_systems(&self) -> Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", self.directory("proc")?, "proc", flags, None)
            .context("cannot mount /proc")?;
        for name in ["dev", "sys"] {
            mount_bind_recursive(Path::new("/").join(name), self.directory(name)?)
                .with_context(|| format!("cannot mount /{name}"))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("run", self.directory("run")?, "tmpfs", flags, Some(c"mode=755"))
            .context("cannot mount /run")
    }

    fn directory(&self, place: &str) -> Result<PathBuf> {
        let path = self.root.join(place);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    fn writable(&self, from: &Path, place: &str) -> Result<()> {
        bind(from, &self.directory(place)?)
    }

    fn read_only(&self, from: &Path, place: &str) -> Result<()> {
        let to = self.directory(place)?;
        bind(from, &to)?;
        make_read_only(&to)
    }

    fn read_only_file(&self, from: &Path, place: &str) -> Result<()> {
        let to = self.root.join(place);
        fs::write(&to, "").with_context(|| format!("cannot make {}", to.display()))?;
        bind(from, &to)?;
        make_read_only(&to)
    }
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount_bind(from, to)
        .with_context(|| format!("cannot mount {} at {}", from.display(), to.display()))
}

fn make_read_only(place: &Path) -> Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    mount_remount(place, flags, "")
        .with_context(|| format!("cannot make {} read-only", place.display()))
}

/// After that nothing of the machine's own tree can be reached.
fn enter(root: &Path) -> Result<()> {
    std::env::set_current_dir(root).context("cannot enter the tree")?;
    // The old root is mounted on top of the new one, where it can be unmounted.
    pivot_root(".", ".").context("cannot make the tree the root")?;
    unmount(".", UnmountFlags::DETACH).context("cannot leave the machine's own tree")?;
    std::env::set_current_dir(Path::new("/").join(CHECKOUT)).context("cannot enter the checkout")
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut cargo = Command::new("/root/.cargo/bin/cargo");
    cargo.args(["xtask", "test"]).args(arguments);
    cargo.env_clear().envs(environment::of_the_tree(std::env::vars_os()));
    let child = cargo.spawn().context("cannot start cargo in the tree")?;
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // Every child is waited for here and nowhere else: orphans come to the first process.
    loop {
        let Some((ended, status)) = wait(WaitOptions::empty()).context("cannot wait")? else {
            continue;
        };
        if Some(ended) == child {
            let well = status.exit_status() == Some(0);
            return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// Whoever calls it by hand would mount things on the machine itself.
    #[test]
    fn nothing_is_mounted_outside_a_new_namespace() {
        let scratch = Scratch::new("fresh-test").unwrap();
        let path = scratch.path().display().to_string();
        let options = crate::parsed::<InsideOptions>(&[path.as_str(); 7].join(" ")).unwrap();
        let error = main(&options).unwrap_err();
        assert!(error.to_string().contains("pid namespace"), "{error}");
        assert!(crate::parsed::<InsideOptions>("").is_err());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&path), "{mounts}");
    }
}
