//! Tries to change mounts.

use std::path::Path;

use belljar_linux::sys::attempt;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, mount_bind, mount_remount};

use super::{Arguments, ProbeError, Probed, c_string};
use crate::probe_report::{AttemptResult, ProbeReport};

/// Makes read-only mounts writable. With `prepare` as the first argument it creates them first, for a control.
pub(super) fn remount(args: &Arguments<'_>) -> Probed {
    let prepare = args.text(0, "given or prepare")? == "prepare";
    let mut report = ProbeReport::default();
    for target in args.all().skip(1) {
        let path = Path::new(target);
        if prepare {
            mount_bind(path, path).map_err(ProbeError::step("bind"))?;
            mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")
                .map_err(ProbeError::step("make read-only"))?;
        }
        let shown = path.display();
        let name = c_string(target)?;
        // What has to fail before the attempts, or they show nothing.
        report.answered(format!("write before: {shown}"), write_in(path));
        report.tried(format!("mount_setattr {shown}"), attempt::mount_setattr(&name));
        report.tried(format!("remount {shown}"), attempt::remount_writable(&name));
        report.answered(format!("write after: {shown}"), write_in(path));
        report.tried(format!("unmount {shown}"), attempt::unmount(&name));
    }
    Ok(report)
}

fn write_in(directory: &Path) -> AttemptResult {
    let path = directory.join("belljar-probe-was-here");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    AttemptResult::of(open(path, flags, Mode::from_raw_mode(0o600)).map(drop))
}

pub(super) fn mount_calls(_: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    report.tried("fsopen", attempt::fsopen());
    report.tried("open_tree", attempt::open_tree());
    report.tried("fspick", attempt::fspick());
    report.tried("mount", attempt::mount_tmpfs(c"/tmp"));
    report.tried("mount_setattr", attempt::mount_setattr(c"/proc"));
    report.tried("move_mount", attempt::move_mount());
    report.tried("umount2", attempt::unmount(c"/tmp"));
    report.tried("chroot", attempt::chroot());
    Ok(report)
}

/// A descriptor from before, new user and mount namespaces, a tmpfs on top: the way to a writable root.
pub(super) fn nested_namespace(args: &Arguments<'_>) -> Probed {
    let mark = args.path(0, "a file to make")?;
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(ProbeError::step("keep the root"))?;
    let mut report = ProbeReport::default();
    report.tried("unshare", attempt::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS));
    report.tried("mount", attempt::mount_tmpfs(c"/tmp"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let relative = mark.strip_prefix("/").unwrap_or(mark);
    let made = rustix::fs::openat(&root, relative, flags, Mode::from_raw_mode(0o600)).map(drop);
    report.tried("write through the kept root", made);
    Ok(report)
}

pub(super) fn overlay_mount(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    report.tried("unshare", attempt::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS));
    // In a new user namespace no directories can be created: they would have no owner.
    let options = format!("lowerdir={0}/a:{0}/b,userxattr", directory.display());
    let outcome =
        attempt::mount_type(c"overlay", &c_string(directory.join("on"))?, &c_string(options)?);
    report.tried("mount overlay", outcome);
    Ok(report)
}

/// The way to a release agent: a control group hierarchy of one's own.
pub(super) fn cgroup_mount(args: &Arguments<'_>) -> Probed {
    let target = c_string(args.path(0, "a directory")?)?;
    let mut report = ProbeReport::default();
    report.tried("unshare", attempt::unshare(libc::CLONE_NEWCGROUP));
    report.tried("mount cgroup2", attempt::mount_type(c"cgroup2", &target, c""));
    report
        .tried("mount cgroup", attempt::mount_type(c"cgroup", &target, c"none,name=belljar-probe"));
    Ok(report)
}
