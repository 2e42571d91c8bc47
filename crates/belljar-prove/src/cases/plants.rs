//! Files that a run leaves in a host tree for another user to execute or to trip over.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use belljar_spec::Clause;

use super::judge::{
    ENOSYS, EOPNOTSUPP, EPERM, broken, judge, refusals, refused_too, summary, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.setuid-plant",
        attack: "leave a setuid or setgid file, by every call that can make one",
        clause: Clause::FsNosuid,
        severity: Severity::Critical,
        run: setuid_plant,
    },
    Case {
        name: "fs.setuid-rewrite",
        attack: "change a setuid file of the host's tree by a way that keeps the bit",
        clause: Clause::FsNosuid,
        severity: Severity::Critical,
        run: setuid_rewrite,
    },
    Case {
        name: "fs.capability-plant",
        attack: "leave a file with a capability",
        clause: Clause::FsNosuid,
        severity: Severity::Critical,
        run: capability_plant,
    },
    Case {
        name: "fs.device-node",
        attack: "make a device node of the disk, of memory, or overlayfs's \"deleted\"",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: device_node,
    },
    Case {
        name: "fs.overlay-attributes",
        attack: "mark a directory so that a later overlay looks elsewhere",
        clause: Clause::FsMounts,
        severity: Severity::Medium,
        run: overlay_attributes,
    },
];

const SETUID_AND_SETGID: u32 = 0o6000;

fn setuid_plant(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "setuid").arg("/workspace"))?.report()?;
    if let Some(planted) = with_bits(&workspace) {
        return Ok(Verdict::broke(format!("the host has {planted}")));
    }
    for tried in &inside.tries {
        // Its mode is behind a pointer, so the whole call is not there.
        let wanted = if tried.what.ends_with("openat2") { ENOSYS } else { EPERM };
        let too_old = tried.what.ends_with("fchmodat2") && tried.answer == ENOSYS;
        if tried.answer != wanted && !too_old {
            return Ok(Verdict::broke(format!("{}: {}, not {wanted}", tried.what, tried.answer)));
        }
    }
    let outside = testbed.place()?;
    let control = testbed
        .outside(Unprotected::Directly, ["setuid".as_ref(), outside.as_os_str()])?
        .report()?;
    if with_bits(&outside).is_none() {
        return Ok(Verdict::no_control("outside, no file got such a bit either"));
    }
    Ok(judge(&inside, &control, &[EPERM, ENOSYS], usual))
}

/// The first file in a directory that has one of the bits.
fn with_bits(directory: &Path) -> Option<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.metadata().is_ok_and(|found| found.mode() & SETUID_AND_SETGID != 0))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .next()
}

fn setuid_rewrite(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    testbed.directory(&workspace.join("deep"), 0o755)?;
    let marked = |path: &Path| -> Result<(), TestBedError> {
        testbed.file(path, "original")?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        std::fs::set_permissions(path, mode).map_err(TestBedError::io("set the bit"))
    };
    // Rewritten, but with the same effect when executed.
    let is_planted = |path: &Path| {
        let has_bit =
            std::fs::metadata(path).is_ok_and(|found| found.mode() & SETUID_AND_SETGID != 0);
        has_bit && std::fs::read(path).is_ok_and(|content| content.starts_with(b"X"))
    };
    let files = ["tool", "deep/tool"].map(|name| workspace.join(name));
    files.iter().try_for_each(|path| marked(path))?;
    let run = Run::of(&workspace, "rewrite").args(["/workspace/tool", "/workspace/deep/tool"]);
    let seen = testbed.inside(&run)?;
    if let Some(planted) = files.iter().find(|path| is_planted(path)) {
        let name = planted.strip_prefix(&workspace).unwrap_or(planted);
        return Ok(Verdict::broke(format!("{} is rewritten and still setuid", name.display())));
    }
    let control_at = testbed.place()?.join("tool");
    marked(&control_at)?;
    testbed
        .outside(Unprotected::Directly, ["rewrite".as_ref(), control_at.as_os_str()])?
        .report()?;
    if !is_planted(&control_at) {
        return Ok(Verdict::no_control("outside, the bit was lost too"));
    }
    match seen.probe_report() {
        Some(report) => Ok(Verdict::held(summary(&report))),
        None if seen.code == Some(125) => {
            let without = testbed.workspace()?;
            testbed.inside(&Run::of(&without, "read").arg("/"))?.report()?;
            Ok(Verdict::held("the start was refused"))
        }
        None => Err(TestBedError::Unexpected(format!("{}: {}", seen.end(), seen.stderr))),
    }
}

fn capability_plant(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed
        .inside(&Run::of(&workspace, "file-capability").arg("/workspace/planted"))?
        .report()?;
    let planted = workspace.join("planted");
    let mut value = [0_u8; 64];
    if rustix::fs::getxattr(&planted, "security.capability", &mut value).is_ok() {
        return Ok(Verdict::broke("the host has a file with a capability"));
    }
    let outside = testbed.place()?.join("planted");
    let argv = ["file-capability".as_ref(), outside.as_os_str()];
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    Ok(judge(&inside, &control, &refusals(testbed, &[EPERM], &[EOPNOTSUPP]), usual))
}

fn device_node(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "nodes").arg("/workspace"))?.report()?;
    let on_tmpfs = testbed.inside(&Run::of(&workspace, "nodes").arg("/tmp"))?.report()?;
    if has_device(&workspace) {
        return Ok(Verdict::broke("the host has a device node"));
    }
    if let Some(verdict) = broken(&on_tmpfs, &[EPERM]) {
        return Ok(verdict);
    }
    let outside = testbed.place()?;
    let control =
        testbed.outside(Unprotected::Scratch, ["nodes".as_ref(), outside.as_os_str()])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}

fn has_device(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_type().ok())
        .any(|kind| kind.is_block_device() || kind.is_char_device())
}

fn overlay_attributes(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    for (directory, file) in [("marked", "own"), ("elsewhere", "other")] {
        testbed.directory(&workspace.join(directory), 0o755)?;
        testbed.file(&workspace.join(directory).join(file), "x")?;
    }
    let run = Run::of(&workspace, "overlay-attributes").args(["/workspace/marked", "/elsewhere"]);
    let inside = testbed.inside(&run)?.report()?;
    let refusals = refusals(testbed, &[EPERM], &[EOPNOTSUPP]);
    for what in ["trusted.overlay.redirect", "trusted.overlay.opaque"] {
        if rustix::fs::getxattr(workspace.join("marked"), what, &mut [0_u8; 64]).is_ok() {
            return Ok(Verdict::broke(format!("the host has a directory with {what}")));
        }
        match inside.answer(what) {
            Some(answer) if refusals.contains(&answer) => {}
            answer => return Ok(Verdict::broke(format!("{what}: {answer:?}, not EPERM"))),
        }
    }
    // The `user.` ones may be set; a later run that gets the tree through an overlay must not care.
    let reader = Run::without_workspace(testbed, "read")
        .mount(&workspace, "/shown")
        .args(["/shown/marked/own", "/shown/marked/other"]);
    let read = testbed.inside(&reader)?.report()?;
    let seen = ["/shown/marked/own", "/shown/marked/other"].map(|path| read.answer(path));
    if seen != [Some(AttemptResult::Succeeded), Some(AttemptResult::Errno(libc::ENOENT))] {
        return Ok(Verdict::broke(format!(
            "a later run saw the marked directory differently: {}",
            summary(&read)
        )));
    }
    let control_at = testbed.place()?;
    let argv = ["overlay-attributes".as_ref(), control_at.as_os_str(), "/elsewhere".as_ref()];
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    for tried in control.tries.iter().filter(|tried| tried.what.starts_with("trusted.")) {
        if tried.answer != AttemptResult::Succeeded {
            return Ok(refused_too(&tried.what, tried.answer));
        }
    }
    Ok(Verdict::held(summary(&inside)))
}
