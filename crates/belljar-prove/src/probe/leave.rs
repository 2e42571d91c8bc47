//! Leaves hostile entries in the run's tree: links, special files, misleading names, bottomless trees.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use belljar_linux::sys::attempt;
use rustix::fs::{CWD, Mode, XattrFlags, mkdirat, mkfifoat, openat, setxattr};
use rustix::io::Errno;

use super::{Arguments, ProbeError, Probed, c_string};
use crate::probe_report::ProbeReport;

/// Names that a collector's output must not be led by.
pub(crate) fn evil_names() -> Vec<OsString> {
    let bytes: [&[u8]; 6] = [
        b"a\n{\"event\":\"run.stop\"}",
        b"\x1b[2J\x1b]52;c;eA==\x07",
        b"\xff\xfe",
        b"-rf",
        b"$(touch pwned)",
        b" \t ",
    ];
    bytes.into_iter().map(|name| OsString::from_vec(name.to_vec())).collect()
}

fn tell(report: &mut ProbeReport, what: &str, done: io::Result<()>) {
    let outcome = done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    report.tried(what, outcome);
}

/// `leave-links DIR SECRETS`: `file` and `sub` become links to a secret and to its directory; a new link too.
pub(super) fn links(args: &Arguments<'_>) -> Probed {
    let (directory, secrets) = (args.path(0, "a directory")?, args.path(1, "the secrets")?);
    let mut report = ProbeReport::default();
    let secret = secrets.join("secret");
    tell(&mut report, "remove file", fs::remove_file(directory.join("file")));
    tell(&mut report, "link file", symlink(&secret, directory.join("file")));
    tell(&mut report, "remove sub", fs::remove_dir_all(directory.join("sub")));
    tell(&mut report, "link sub", symlink(secrets, directory.join("sub")));
    tell(&mut report, "link out", symlink(&secret, directory.join("out")));
    let up: std::path::PathBuf = std::iter::repeat_n("..", 24).collect();
    let up = up.join(secret.strip_prefix("/").unwrap_or(&secret));
    tell(&mut report, "link up", symlink(up, directory.join("up")));
    Ok(report)
}

/// `leave-specials DIR`: a FIFO and a socket, one of them where a file was.
pub(super) fn specials(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    tell(&mut report, "remove file", fs::remove_file(directory.join("file")));
    let fifo = |name: &str| mkfifoat(CWD, directory.join(name), Mode::from_raw_mode(0o644));
    report.tried("fifo for a file", fifo("file"));
    report.tried("fifo", fifo("pipe"));
    let bound = UnixListener::bind(directory.join("socket"));
    tell(&mut report, "socket", bound.map(drop));
    for (name, mode, major, minor) in
        [("node", libc::S_IFCHR, 1, 3), ("whiteout", libc::S_IFCHR, 0, 0)]
    {
        let path = c_string(directory.join(name))?;
        let device = rustix::fs::makedev(major, minor);
        report.tried(name, attempt::make_node(&path, mode | 0o600, device));
    }
    Ok(report)
}

/// `leave-bombs DIR FILES DEPTH`: a file of an absurd size, many files, a deep tree of long names.
pub(super) fn bombs(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let (files, depth) = (args.number(1, "how many files")?, args.number(2, "how deep")?);
    let mut report = ProbeReport::default();
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| ProbeError::Step(what, error)
    };
    let huge = File::create(directory.join("huge")).map_err(failed("make huge"))?;
    // As large as the file system takes.
    let size = (30..63).rev().map(|bits| 1_u64 << bits).find(|size| huge.set_len(*size).is_ok());
    report.fact("huge", size.unwrap_or(0));
    let many = directory.join("many");
    fs::create_dir(&many).map_err(failed("make a directory"))?;
    for number in 0..files.min(100_000) {
        File::create(many.join(number.to_string())).map_err(failed("make a file"))?;
    }
    report.fact("files", files);
    let mut here = openat(CWD, directory, rustix::fs::OFlags::PATH, Mode::empty())
        .map_err(ProbeError::step("open the directory"))?;
    let name = "d".repeat(255);
    let mut made = 0;
    for _ in 0..depth.min(20_000) {
        let step = mkdirat(&here, name.as_str(), Mode::from_raw_mode(0o755))
            .and_then(|()| openat(&here, name.as_str(), rustix::fs::OFlags::PATH, Mode::empty()));
        let Ok(next) = step else { break };
        here = next;
        made += 1;
    }
    report.fact("depth", made);
    Ok(report)
}

/// `leave-names DIR`: each with a little content.
pub(super) fn names(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    for name in evil_names() {
        let shown = belljar_spec::text::escape(name.as_bytes());
        tell(&mut report, &shown, fs::write(directory.join(&name), "x\n"));
    }
    Ok(report)
}

/// `leave-marks DIR`: overlayfs attributes for "deleted", "replaced" and "redirected".
pub(super) fn marks(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    let node = c_string(directory.join("kept"))?;
    tell(&mut report, "remove other", fs::remove_file(directory.join("other")));
    report.tried("whiteout over kept", attempt::make_node(&node, libc::S_IFCHR | 0o600, 0));
    tell(&mut report, ".wh.kept", fs::write(directory.join(".wh.kept"), ""));
    tell(&mut report, ".wh..wh..opq", fs::write(directory.join("sub/.wh..wh..opq"), ""));
    tell(&mut report, "touch sub", fs::write(directory.join("sub/new"), "x"));
    tell(&mut report, "empty", fs::write(directory.join("sub/empty"), ""));
    for prefix in ["user.overlay.", "trusted.overlay."] {
        for (path, mark, value) in [
            ("sub", "opaque", &b"y"[..]),
            ("sub", "redirect", b"/elsewhere"),
            ("sub/empty", "whiteout", b""),
            ("sub/new", "metacopy", b""),
        ] {
            let set = setxattr(
                directory.join(path),
                format!("{prefix}{mark}"),
                value,
                XattrFlags::empty(),
            );
            report.tried(format!("{prefix}{mark}"), set);
        }
    }
    Ok(report)
}

/// `leave-hard-links DIR`: one file under several names, and new content in `shared`.
pub(super) fn hard_links(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    tell(&mut report, "write shared", fs::write(directory.join("shared"), "by the run\n"));
    tell(&mut report, "make one", fs::write(directory.join("one"), "x\n"));
    for name in ["two", "three"] {
        tell(&mut report, name, fs::hard_link(directory.join("one"), directory.join(name)));
    }
    Ok(report)
}

/// `leave-locked DIR DEPTH`: directories that deny everything, even to their owner.
pub(super) fn locked(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    let mut here = directory.join("locked");
    let mut all = Vec::new();
    for _ in 0..args.number(1, "how deep")?.min(200) {
        tell(&mut report, "make", fs::create_dir(&here));
        tell(&mut report, "fill", fs::write(here.join("file"), "x"));
        all.push(here.clone());
        here = here.join("d");
    }
    for path in all.iter().rev() {
        let mode = fs::Permissions::from_mode(0o000);
        tell(&mut report, "lock", fs::set_permissions(path, mode));
    }
    Ok(report)
}

/// `swap-own DIR MILLISECONDS SECRETS`: makes a directory with a file, a link to the secrets beside it, and exchanges
/// them as fast as it can.
pub(super) fn swap_own(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let secrets = args.path(2, "the secrets")?;
    let made = fs::create_dir_all(directory.join("d"))
        .and_then(|()| fs::write(directory.join("d/plain"), "x"))
        .and_then(|()| symlink(secrets, directory.join("l")));
    made.map_err(|error| ProbeError::Step("make what is swapped".to_owned(), error))?;
    let (one, other) = (directory.join("d"), directory.join("l"));
    let time = args.0.get(1).cloned().unwrap_or_default();
    super::files::flip(&Arguments(&[one.into(), other.into(), time]))
}

/// `leave-plants DIR COMMAND`: everything of git's and of other tools that would run the command.
pub(super) fn plants(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let command = args.text(1, "a command")?;
    let mut report = ProbeReport::default();
    let git = directory.join(".git");
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = {command}\n\
         \thooksPath = .hooks\n\tsshCommand = {command}\n\tpager = {command}\n\teditor = {command}\n\
         \tattributesFile = .attributes\n\
         [filter \"x\"]\n\tclean = {command}\n\tsmudge = {command}\n\tprocess = {command}\n\trequired = true\n\
         [diff]\n\texternal = {command}\n[diff \"x\"]\n\tcommand = {command}\n\ttextconv = {command}\n\
         [merge \"x\"]\n\tdriver = {command}\n[alias]\n\tdiff = !{command}\n\tstatus = !{command}\n\
         [pager]\n\tdiff = {command}\n\tstatus = {command}\n[credential]\n\thelper = !{command}\n\
         [include]\n\tpath = ../more\n"
    );
    let script = format!("#!/bin/sh\n{command}\n");
    let executable = |path: &Path| {
        fs::write(path, &script)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
    };
    for name in ["hooks", "modules/m/hooks", "worktrees/w", "info", "refs/heads", "objects"] {
        tell(&mut report, name, fs::create_dir_all(git.join(name)));
    }
    tell(&mut report, "config", fs::write(git.join("config"), &config));
    tell(&mut report, "HEAD", fs::write(git.join("HEAD"), "ref: refs/heads/main\n"));
    tell(&mut report, "module config", fs::write(git.join("modules/m/config"), &config));
    tell(&mut report, "commondir", fs::write(git.join("worktrees/w/commondir"), "/elsewhere\n"));
    for hook in ["pre-commit", "post-checkout", "fsmonitor-watchman", "post-index-change"] {
        tell(&mut report, hook, executable(&git.join("hooks").join(hook)));
    }
    tell(
        &mut report,
        ".attributes",
        fs::write(directory.join(".gitattributes"), "* filter=x diff=x merge=x\n"),
    );
    tell(&mut report, "nested", fs::create_dir_all(directory.join("nested")));
    tell(
        &mut report,
        "gitdir",
        fs::write(directory.join("nested/.git"), "gitdir: ../.git/modules/m\n"),
    );
    tell(&mut report, ".envrc", fs::write(directory.join(".envrc"), &script));
    tell(&mut report, "conftest.py", fs::write(directory.join("conftest.py"), "import os\n"));
    tell(
        &mut report,
        "Makefile",
        fs::write(directory.join("Makefile"), format!("all:\n\t{command}\n")),
    );
    tell(&mut report, "file", fs::write(directory.join("file"), "changed\n"));
    Ok(report)
}

/// `control-files DIR ROOM`: every way to change what decides about the host's tools, in a tree that is written to
/// directly. `ROOM` is a plain file beside them.
pub(super) fn control_files(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    let at = |name: &str| directory.join(name);
    let append =
        |name: &str| fs::OpenOptions::new().create(true).append(true).open(at(name)).map(drop);
    for name in args.0[1..].iter().map(OsString::as_os_str).filter_map(OsStr::to_str) {
        tell(&mut report, &format!("write {name}"), append(name));
        tell(&mut report, &format!("replace {name}"), replace(&at(name)));
        tell(&mut report, &format!("link {name}"), symlink("elsewhere", at(name)));
        tell(&mut report, &format!("remove {name}"), fs::remove_file(at(name)));
    }
    Ok(report)
}

fn replace(path: &Path) -> io::Result<()> {
    let other = path.with_file_name("replacement");
    let parent = path.parent().unwrap_or(Path::new("/"));
    // A directory that is not to be written to refuses here already.
    fs::write(&other, "planted")
        .or_else(|_| fs::write(parent.with_file_name("replacement"), "planted"))?;
    let from = if other.exists() { other } else { parent.with_file_name("replacement") };
    let moved = fs::rename(&from, path);
    let _ = fs::remove_file(from); // of no use any more
    moved
}
