//! The images of the tests, made on the spot: nothing is pulled.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::api;
use crate::{command, debian, host};
use belljar_testkit::private_docker::{BUSYBOX_IMAGE, DEBIAN_IMAGE, EMPTY_IMAGE};

const TAR_LIMIT: Duration = Duration::from_secs(60);
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

pub(super) struct Images {
    /// Busybox with a link for each of its programs.
    pub(super) busybox: PathBuf,
    /// The same with the directories that a distribution's image has.
    like_debian: PathBuf,
    /// One directory: an image without even a shell.
    empty: PathBuf,
}

impl Images {
    pub(super) fn make(directory: &Path, busybox: &Path) -> Result<Self> {
        let trees = directory.join("trees");
        let [tree, empty] = ["busybox", "empty"].map(|name| trees.join(name));
        plant(&tree, busybox).context("cannot make the image's files")?;
        fs::create_dir_all(empty.join("nothing")).context("cannot make the image's files")?;
        let busybox = archive(&tree, &directory.join("busybox.tar"))?;
        for name in ["boot", "media", "mnt", "opt", "proc", "run", "srv", "sys", "var/run"] {
            fs::create_dir_all(tree.join(name)).context("cannot make the image's files")?;
        }
        Ok(Self {
            busybox,
            like_debian: archive(&tree, &directory.join("like-debian.tar"))?,
            empty: archive(&empty, &directory.join("empty.tar"))?,
        })
    }

    /// Under their names on Docker, with this before each.
    pub(super) fn import(&self, socket: &Path, registry: &str) -> Result<()> {
        for (archive, name) in [
            (&self.busybox, BUSYBOX_IMAGE),
            (&self.like_debian, DEBIAN_IMAGE),
            (&self.empty, EMPTY_IMAGE),
        ] {
            let bytes =
                fs::read(archive).with_context(|| format!("cannot read {}", archive.display()))?;
            api::import(socket, &bytes, &format!("{registry}{name}"))?;
        }
        Ok(())
    }
}

/// Debian's minimal system as an archive, made once and kept in the target directory: what a user's image is like, with
/// files of its own where the host has some too.
pub(super) fn debian_archive() -> Result<PathBuf> {
    let directory = host::target_directory()?.join("debian");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let tree = debian::ensure(&directory, &[])?;
    let file = tree.with_extension("tar");
    if file.exists() {
        return Ok(file);
    }
    let partial = archive(&tree, &directory.join("partial.tar"))?;
    fs::rename(&partial, &file).with_context(|| format!("cannot name {}", file.display()))?;
    Ok(file)
}

fn plant(tree: &Path, busybox: &Path) -> Result<()> {
    for name in ["bin", "dev", "etc", "home", "root", "tmp", "usr", "var/tmp"] {
        fs::create_dir_all(tree.join(name))?;
    }
    for name in ["tmp", "var/tmp"] {
        fs::set_permissions(tree.join(name), Permissions::from_mode(0o1777))?;
    }
    symlink("bin", tree.join("sbin"))?;
    symlink("../bin", tree.join("usr/bin"))?;
    symlink("../bin", tree.join("usr/sbin"))?;
    fs::write(tree.join("etc/passwd"), PASSWD)?;
    fs::write(tree.join("etc/group"), GROUP)?;
    fs::copy(busybox, tree.join("bin/busybox"))?;
    fs::set_permissions(tree.join("bin/busybox"), Permissions::from_mode(0o755))?;
    let programs = command::read(Command::new(busybox).arg("--list"))?;
    for name in programs.lines().filter(|name| *name != "busybox") {
        symlink("busybox", tree.join("bin").join(name))?;
    }
    Ok(())
}

fn archive(tree: &Path, file: &Path) -> Result<PathBuf> {
    let mut tar = Command::new("tar");
    // A tree of debootstrap has owners of its own, devices that no image needs, and a mounted /proc if it was
    // interrupted, or something kept that busy.
    tar.arg("-C").arg(tree).args([
        "--one-file-system",
        "--exclude=./dev/*",
        "--numeric-owner",
        "-cf",
    ]);
    command::check(tar.arg(file).arg("."), TAR_LIMIT)?;
    Ok(file.to_owned())
}
