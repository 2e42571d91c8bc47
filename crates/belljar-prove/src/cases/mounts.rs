//! Attacks that change mounts, and links at mount targets.

use std::os::unix::fs::symlink;
use std::path::Path;

use belljar_spec::Clause;

use super::judge::{
    EACCES, ENOENT, EPERM, EROFS, broken, judge, let_in, refusals, refused_too, summary, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.remount-writable",
        attack: "make a read-only mount writable, or take it off",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: remount,
    },
    Case {
        name: "fs.mount-calls",
        attack: "mount by every call there is, old and new",
        clause: Clause::FsReadonly,
        severity: Severity::High,
        run: mount_calls,
    },
    Case {
        name: "fs.nested-namespace",
        attack: "a new user and mount namespace, and a write through a kept descriptor",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: nested_namespace,
    },
    Case {
        name: "fs.overlay-mount",
        attack: "mount an overlay in a user namespace",
        clause: Clause::FsReadonly,
        severity: Severity::High,
        run: overlay_mount,
    },
    Case {
        name: "fs.release-agent",
        attack: "mount a control group hierarchy, the way to a release agent",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: release_agent,
    },
    Case {
        name: "fs.target-link",
        attack: "a link where a mount is to go, in the workspace or the root directory",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: target_link,
    },
];

fn remount(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, given) = (testbed.workspace()?, testbed.place()?);
    testbed.directory(&given.join("below"), 0o755)?;
    let run = Run::of(&workspace, "remount").mount(&given, "/ro").args([
        "given",
        "/ro",
        "/usr",
        "/proc/sys",
    ]);
    let inside = testbed.inside(&run)?.report()?;
    let control_at = testbed.place()?;
    let argv = ["remount".as_ref(), "prepare".as_ref(), control_at.as_os_str()];
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    if names_in(&given) > 1 {
        return Ok(Verdict::broke("a file was made in the read-only tree"));
    }
    if let Some(verdict) =
        broken(&inside, &[EPERM, EROFS, AttemptResult::Errno(libc::EACCES), ENOENT])
    {
        return Ok(verdict);
    }
    for tried in &inside.tries {
        let is_call = !tried.what.starts_with("write");
        if is_call && tried.answer != EPERM {
            return Ok(Verdict::broke(format!("{}: {}, not EPERM", tried.what, tried.answer)));
        }
        if tried.what.ends_with(": /ro") && tried.answer != EROFS {
            return Ok(Verdict::broke(format!("{}: {}, not EROFS", tried.what, tried.answer)));
        }
    }
    // Read-only before, writable after: that is what the attempts are for.
    let shown: Vec<AttemptResult> = control.tries.iter().map(|tried| tried.answer).collect();
    let wanted = [
        EROFS,
        AttemptResult::Succeeded,
        AttemptResult::Succeeded,
        AttemptResult::Succeeded,
        AttemptResult::Succeeded,
    ];
    if shown != wanted {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    Ok(Verdict::held(summary(&inside)))
}

fn names_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

fn mount_calls(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "mount-calls"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["mount-calls"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], |what, answer| match what {
        // What can be moved where depends on the host's mounts.
        "move_mount" => let_in(what, answer),
        what => usual(what, answer),
    }))
}

fn nested_namespace(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed
        .inside(&Run::of(&workspace, "nested-namespace").arg("/belljar-probe-was-here"))?
        .report()?;
    // gVisor checks permissions before it checks for a read-only mount.
    let read_only = refusals(testbed, &[EROFS], &[EACCES]);
    for (what, wanted) in [
        ("unshare", &[EPERM][..]),
        ("mount", &[EPERM]),
        ("write through the kept root", &read_only),
    ] {
        match inside.answer(what) {
            Some(answer) if wanted.contains(&answer) => {}
            answer => return Ok(Verdict::broke(format!("{what}: {answer:?}, not {}", wanted[0]))),
        }
    }
    let mark = testbed.place()?.join("mark");
    let control = testbed
        .outside(Unprotected::Scratch, ["nested-namespace".as_ref(), mark.as_os_str()])?
        .report()?;
    for what in ["unshare", "mount"] {
        match control.answer(what) {
            Some(AttemptResult::Succeeded) => {}
            answer => return Ok(Verdict::no_control(format!("outside, {what}: {answer:?}"))),
        }
    }
    Ok(Verdict::held(summary(&inside)))
}

fn overlay_mount(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    for name in ["a", "b", "on"] {
        testbed.directory(&workspace.join(name), 0o777)?;
    }
    let inside =
        testbed.inside(&Run::of(&workspace, "overlay-mount").arg("/workspace"))?.report()?;
    let control = testbed
        .outside(Unprotected::Scratch, ["overlay-mount".as_ref(), workspace.as_os_str()])?
        .report()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}

fn release_agent(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "cgroup-mount").arg("/tmp"))?.report()?;
    if let Some(verdict) = broken(&inside, &[EPERM]) {
        return Ok(verdict);
    }
    let at = testbed.place()?;
    let control = testbed
        .outside(Unprotected::Scratch, ["cgroup-mount".as_ref(), at.as_os_str()])?
        .report()?;
    let mounted = ["mount cgroup2", "mount cgroup"].map(|what| control.answer(what));
    match (control.answer("unshare"), mounted.contains(&Some(AttemptResult::Succeeded))) {
        (Some(AttemptResult::Succeeded), true) => Ok(Verdict::held(summary(&inside))),
        _ => {
            let last = control.tries.last().map_or(ENOENT, |tried| tried.answer);
            Ok(refused_too("mounting control groups", last))
        }
    }
}

fn target_link(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let secrets = testbed.place()?;
    testbed.file(&secrets.join("secret"), "x")?;
    let io = || TestBedError::io("make a link");
    let workspace = testbed.workspace()?;
    symlink(&secrets, workspace.join("data")).map_err(io())?;
    let control = workspace.join("data/secret");
    let control =
        testbed.outside(Unprotected::Directly, ["read".as_ref(), control.as_os_str()])?.report()?;
    if control.successes() != 1 {
        return Ok(Verdict::no_control("outside, the link does not lead there either"));
    }
    let harmless = testbed.place()?;
    for target in ["/workspace/data", "/workspace/data/below"] {
        let seen =
            testbed.inside(&Run::of(&workspace, "read").mount(&harmless, target).arg("/"))?;
        if seen.code != Some(125) || seen.probe_report().is_some() {
            return Ok(Verdict::broke(format!(
                "a mount at {target} was put through the link: {}",
                seen.end()
            )));
        }
    }
    // And it is the link that was refused.
    testbed.directory(&workspace.join("plain"), 0o755)?;
    let plain = Run::of(&workspace, "read").mount(&harmless, "/workspace/plain").arg("/");
    testbed.inside(&plain)?.report()?;
    if testbed.has_image() {
        return Ok(Verdict::held("2 starts refused"));
    }
    // A root directory with links that lead out of it.
    let root = testbed.place()?;
    for name in ["proc", "dev", "tmp", "etc", "opt", "usr", "home"] {
        symlink(&secrets, root.join(name)).map_err(io())?;
    }
    let run = Run::without_workspace(testbed, "read").flag("--rootfs").flag(&root).args([
        "/etc/secret",
        "/opt/secret",
        "/usr/secret",
        "/proc/secret",
        "/dev/secret",
        "/tmp/secret",
    ]);
    let seen = testbed.inside(&run)?;
    match seen.probe_report() {
        None if seen.code == Some(125) => Ok(Verdict::held("3 starts refused")),
        None => Err(TestBedError::Unexpected(format!("{}: {}", seen.end(), seen.stderr))),
        Some(report) => match broken(&report, &[ENOENT]) {
            Some(_) => Ok(Verdict::broke(format!(
                "the root directory's links were followed: {}",
                summary(&report)
            ))),
            None => Ok(Verdict::held("2 starts refused; the root's links lead nowhere")),
        },
    }
}
