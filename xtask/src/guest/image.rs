//! Makes what the guest boots from: an initramfs that finds the disk, and the disk, an ext4 image
//! with busybox, belljar and the tests. Needs no root and mounts nothing on this machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::GuestFile;
use super::cpio::Archive;
use super::download::Parts;
use super::job::Job;
use super::modules;
use crate::{command, host};

const INITRAMFS_INIT: &str = include_str!("files/initramfs-init");
const RUN_JOBS: &str = include_str!("files/run-jobs");

/// Small files of the guest's root. Busybox's init runs the jobs first thing and nothing after.
const FILES: [(&str, &str); 6] = [
    ("etc/inittab", "::sysinit:/guest/run-jobs\n"),
    (
        "etc/passwd",
        concat!(
            "root:x:0:0:root:/root:/bin/sh\n",
            "tester:x:1000:1000:tester:/home/tester:/bin/sh\n",
            "nobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
    ),
    ("etc/group", "root:x:0:\ntester:x:1000:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost guest\n::1 localhost\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("etc/hostname", "guest\n"),
];

const DIRECTORIES: [&str; 14] = [
    "dev", "etc", "guest", "home", "lib", "proc", "root", "run", "sys", "tmp", "usr/bin",
    "usr/lib", "usr/sbin", "var/tmp",
];

/// Room on the disk for what the tests write, beside what is put there.
const FREE_MIB: u64 = 512;

pub(crate) fn initramfs(parts: &Parts, target: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "disk", "modules"] {
        archive.directory(directory);
    }
    let busybox = read(&parts.busybox)?;
    archive.executable("bin/busybox", &busybox);
    for applet in ["sh", "mount", "umount", "insmod", "cat", "sleep", "reboot", "switch_root", "["]
    {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    let mut order = String::new();
    for module in modules::in_load_order(&parts.modules)? {
        let file = format!("{}.ko", module.name);
        archive.executable(&format!("modules/{file}"), &module.contents);
        order.push_str(&file);
        order.push('\n');
    }
    archive.executable("modules/order", order.as_bytes());
    archive.executable("init", INITRAMFS_INIT.as_bytes());
    write(target, &archive.finish())
}

pub(crate) fn disk(
    parts: &Parts,
    belljar: Option<&Path>,
    files: &[GuestFile],
    jobs: &[Job],
    target: &Path,
) -> Result<()> {
    let tree = target.with_extension("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    }
    fill(&tree, parts, belljar, jobs)?;
    for GuestFile { source, target } in files {
        let inside = tree.join(target);
        // A link to busybox would be written through.
        ensure!(!inside.exists(), "the guest has {} already", target.display());
        let directory = inside.parent().unwrap_or(&tree);
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        copy(source, &inside)?;
    }
    let mke2fs = host::require_program("mke2fs", "e2fsprogs")?;
    let size = format!("{}M", size_of(&tree)? / (1024 * 1024) * 5 / 4 + FREE_MIB);
    if target.exists() {
        fs::remove_file(target).with_context(|| format!("cannot remove {}", target.display()))?;
    }
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&tree).arg(target).arg(size);
    command::check(command.stdin(Stdio::null()).stdout(Stdio::null()), Duration::from_secs(120))?;
    fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))
}

fn fill(tree: &Path, parts: &Parts, belljar: Option<&Path>, jobs: &[Job]) -> Result<()> {
    for directory in DIRECTORIES {
        let path = tree.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    fs::remove_dir(tree.join("lib")).context("cannot remove the guest's empty /lib")?;
    for (link, place) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")] {
        make_link(place, &tree.join(link))?;
    }
    for (path, contents) in FILES {
        write(&tree.join(path), contents.as_bytes())?;
    }
    copy(&parts.busybox, &tree.join("usr/bin/busybox"))?;
    for applet in applets(&parts.busybox)? {
        // All in one place but for init, whose name the kernel and switch_root expect in /sbin.
        if applet != "busybox" && applet != "init" {
            make_link("busybox", &tree.join("usr/bin").join(applet))?;
        }
    }
    make_link("../bin/busybox", &tree.join("usr/sbin/init"))?;
    if let Some(belljar) = belljar {
        copy(belljar, &tree.join("usr/bin/belljar"))?;
    }
    let mut list = String::new();
    for job in jobs {
        if let Some(test) = &job.executable {
            let inside = tree.join("guest").join(&test.name);
            if !inside.exists() {
                copy(&test.path, &inside)?;
            }
        }
        list.push_str(&job.line());
    }
    write(&tree.join("guest/jobs"), list.as_bytes())?;
    let run_jobs = tree.join("guest/run-jobs");
    write(&run_jobs, RUN_JOBS.as_bytes())?;
    set_mode(&run_jobs, 0o755)
}

fn applets(busybox: &Path) -> Result<Vec<String>> {
    let text = command::read(Command::new(busybox).arg("--list"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn size_of(directory: &Path) -> Result<u64> {
    let cannot = || format!("cannot read {}", directory.display());
    let mut total = 0;
    for entry in fs::read_dir(directory).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let found = entry.metadata().with_context(cannot)?;
        total += if found.is_dir() { size_of(&entry.path())? } else { found.len() };
    }
    Ok(total)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, contents: &[u8]) -> Result<()> {
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

fn copy(source: &Path, target: &PathBuf) -> Result<()> {
    fs::copy(source, target).with_context(|| format!("cannot copy {}", source.display()))?;
    set_mode(target, 0o755)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

fn make_link(target: &str, link: &Path) -> Result<()> {
    symlink(target, link).with_context(|| format!("cannot make the link {}", link.display()))
}
