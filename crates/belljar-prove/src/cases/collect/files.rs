//! Hostile files in the tree: links, special files, bombs, names, overlay marks, hard links, locked directories.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use belljar_spec::Clause;

use super::trial::{PROMPT, Trial, naive_has_secret, says_secret};
use crate::case::{Case, Severity, Verdict};
use crate::probe::leave::evil_names;
use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::{Run, TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "collect.link",
        attack: "put links to the host's files where work is expected",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: link,
    },
    Case {
        name: "collect.special",
        attack: "leave FIFOs, sockets and devices where work is expected",
        clause: Clause::FsMounts,
        severity: Severity::High,
        run: special,
    },
    Case {
        name: "collect.bomb",
        attack: "leave a file of exabytes, many files and a deep tree",
        clause: Clause::FsQuota,
        severity: Severity::High,
        run: bomb,
    },
    Case {
        name: "collect.names",
        attack: "leave names that drive a terminal, a log or a command line",
        clause: Clause::AuditOutside,
        severity: Severity::Medium,
        run: names,
    },
    Case {
        name: "collect.whiteout",
        attack: "make marks that say \"deleted\" or \"elsewhere\" to a reader of layers",
        clause: Clause::FsMounts,
        severity: Severity::High,
        run: whiteout,
    },
    Case {
        name: "collect.hard-link",
        attack: "write through a second name of a host's file, or leave one",
        clause: Clause::FsMounts,
        severity: Severity::High,
        run: hard_link,
    },
    Case {
        name: "collect.undeletable",
        attack: "leave directories that deny everything, so that they cannot be removed",
        clause: Clause::LifeBound,
        severity: Severity::Medium,
        run: undeletable,
    },
    Case {
        name: "collect.setuid",
        attack: "bring a setuid file or a file with a capability to the host",
        clause: Clause::FsNosuid,
        severity: Severity::Critical,
        run: setuid,
    },
];

fn all_done(report: &ProbeReport) -> Result<(), TestBedError> {
    match report.tries.iter().find(|tried| tried.answer != AttemptResult::Succeeded) {
        None => Ok(()),
        Some(tried) => {
            Err(TestBedError::Unexpected(format!("inside, {}: {}", tried.what, tried.answer)))
        }
    }
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_symlink())
}

fn link(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let secrets = trial.secrets()?;
    all_done(&trial.run("leave-links", [Path::new("/workspace"), &secrets])?)?;
    if !naive_has_secret(&trial.kept()?) {
        return Ok(Verdict::no_control("following the links leads to no secret either"));
    }
    for flags in [&["-p"][..], &["--json"]] {
        if says_secret(&trial.diff(flags)?) {
            return Ok(Verdict::broke("diff read through a link"));
        }
    }
    trial.apply(&[])?;
    if ["out", "up"].iter().any(|name| is_link(&trial.tree.join(name))) {
        return Ok(Verdict::broke("a link out of the tree was applied without being named"));
    }
    // Named, they arrive as links, and nothing is read or written through them.
    trial.apply(&["file", "sub", "out", "up"])?;
    let secret = std::fs::read_to_string(secrets.join("secret")).unwrap_or_default();
    let only_it = std::fs::read_dir(&secrets).map(Iterator::count).unwrap_or(0) == 1;
    if secret != super::trial::SECRET || !only_it {
        return Ok(Verdict::broke("the secret's directory was changed"));
    }
    let arrived = ["file", "sub", "out", "up"].iter().all(|name| is_link(&trial.tree.join(name)));
    if !arrived {
        return Ok(Verdict::broke("something else than a link arrived for a link"));
    }
    Ok(Verdict::held("shown and applied as links; nothing read or written through one"))
}

fn special(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let report = trial.run("leave-specials", ["/workspace"])?;
    let made = ["fifo for a file", "fifo", "socket"];
    if let Some(missing) =
        made.iter().find(|what| report.answer(what) != Some(AttemptResult::Succeeded))
    {
        return Ok(Verdict::no_control(format!("inside, no {missing} can be made")));
    }
    for what in ["node", "whiteout"] {
        if report.answer(what) == Some(AttemptResult::Succeeded) {
            return Ok(Verdict::broke(format!("a device ({what}) was made")));
        }
    }
    let looked = trial.diff(&["-p"])?;
    let applied = trial.apply(&["file", "pipe", "socket"])?;
    if looked.took + applied.took > PROMPT {
        return Ok(Verdict::broke("a command waited for a FIFO"));
    }
    let arrived = ["file", "pipe", "socket", "node"].iter().find(|name| {
        trial.tree.join(name).symlink_metadata().is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
        })
    });
    match arrived {
        Some(name) => Ok(Verdict::broke(format!("{name} arrived on the host"))),
        None => Ok(Verdict::held("none arrived, even when it was named; nobody waited")),
    }
}

fn bomb(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const FILES: &str = "500";
    const DEPTH: &str = "1000";
    let trial = Trial::new(testbed)?;
    // Or the limit on the disk ends the run before it has made all of it.
    let run = Run::over(&trial.tree, "leave-bombs", &trial.name)
        .flag("-c")
        .flag("limits.disk=none")
        .args(["/workspace", FILES, DEPTH]);
    let report = testbed.inside(&run)?.report()?;
    if report.number("huge") < 1 << 40 || report.number("depth") < 600 {
        return Ok(Verdict::not_tried(format!(
            "inside, a file of {} bytes and a depth of {} is all there can be",
            report.get("huge"),
            report.get("depth")
        )));
    }
    let looked = trial.diff(&[])?;
    if looked.took > PROMPT {
        return Ok(Verdict::broke(format!("diff took {} s", looked.took.as_secs())));
    }
    let applied = trial.apply(&[])?;
    if applied.took > PROMPT {
        return Ok(Verdict::broke(format!("apply took {} s", applied.took.as_secs())));
    }
    let huge = trial.tree.join("huge");
    if huge.symlink_metadata().is_ok_and(|found| found.len() >= 1 << 40) {
        return Ok(Verdict::broke("the huge file was applied without being named"));
    }
    trial.discard()?;
    if trial.kept()?.exists() {
        return Ok(Verdict::broke("discard left something of it"));
    }
    Ok(Verdict::held(format!(
        "diff {} ms, apply {} ms, discarded",
        looked.took.as_millis(),
        applied.took.as_millis()
    )))
}

fn names(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    all_done(&trial.run("leave-names", ["/workspace"])?)?;
    for flags in [&[][..], &["-p"], &["--json"]] {
        let looked = trial.diff(flags)?;
        let raw = |bytes: &[u8]| bytes.iter().any(|byte| matches!(byte, 0x1b | 0x07));
        if raw(&looked.stdout) || raw(looked.stderr.as_bytes()) {
            return Ok(Verdict::broke(format!("diff {flags:?} wrote an escape sequence")));
        }
        let injected = looked.stdout.split(|byte| *byte == b'\n');
        if injected.into_iter().any(|line| line.starts_with(b"{\"event\"")) {
            return Ok(Verdict::broke(format!("diff {flags:?} let a name make a line")));
        }
    }
    let applied = trial.apply(&[])?;
    if applied.stderr.contains('\x1b') || applied.stdout.contains(&0x1b) {
        return Ok(Verdict::broke("apply wrote an escape sequence"));
    }
    let missing = evil_names().into_iter().find(|name| !trial.tree.join(name).is_file());
    if let Some(name) = missing {
        let shown = belljar_spec::text::escape(name.as_bytes());
        return Ok(Verdict::broke(format!("{shown} did not arrive under its name")));
    }
    if trial.content("pwned").is_some() {
        return Ok(Verdict::broke("a name was taken for a command"));
    }
    Ok(Verdict::held("escaped where they are shown, and exact in the tree"))
}

fn whiteout(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let report = trial.run("leave-marks", ["/workspace"])?;
    if report.answer("remove other") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("inside, nothing can be removed"));
    }
    trial.diff(&["-p"])?;
    trial.apply(&[".wh.kept", "sub/.wh..wh..opq", "other", "sub"])?;
    // What the run really removed is gone, so marks are read at all.
    if trial.content("other").is_some() {
        return Ok(Verdict::no_control("what was removed inside is still there after apply"));
    }
    for name in ["kept", "sub/inner"] {
        if trial.content(name).as_deref() != Some(b"original\n") {
            return Ok(Verdict::broke(format!("{name} is gone, and nobody removed it")));
        }
    }
    if report.answer("whiteout over kept") == Some(AttemptResult::Succeeded) {
        return Ok(Verdict::broke("a device was made"));
    }
    Ok(Verdict::held("only what was removed inside was removed"))
}

fn hard_link(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let elsewhere = testbed.place()?.join("elsewhere");
    testbed.file(&elsewhere, "original\n")?;
    let shared = trial.tree.join("shared");
    std::fs::hard_link(&elsewhere, &shared).map_err(TestBedError::io("make a second name"))?;
    let report = trial.run("leave-hard-links", ["/workspace"])?;
    if report.answer("write shared") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("inside, the file cannot be written to"));
    }
    trial.diff(&["-p"])?;
    trial.apply(&[])?;
    if std::fs::read(&elsewhere).ok().as_deref() != Some(b"original\n") {
        return Ok(Verdict::broke("a file elsewhere was changed through its second name"));
    }
    if trial.content("shared").as_deref() != Some(b"by the run\n") {
        return Ok(Verdict::no_control("the change did not arrive at all"));
    }
    for name in ["one", "two", "three"] {
        let names = trial.tree.join(name).symlink_metadata().map(|found| found.nlink());
        if !matches!(names, Ok(1)) {
            return Ok(Verdict::broke(format!("{name} arrived with {names:?} names")));
        }
    }
    // What a program does that opens the file and writes.
    let control = testbed.place()?.join("control");
    let second = control.with_file_name("second");
    testbed.file(&control, "original\n")?;
    std::fs::hard_link(&control, &second).map_err(TestBedError::io("make a second name"))?;
    std::fs::write(&second, "by the run\n").map_err(TestBedError::io("write to it"))?;
    if std::fs::read(&control).ok().as_deref() == Some(b"original\n") {
        return Ok(Verdict::no_control("writing through a second name changes nothing here"));
    }
    Ok(Verdict::held("replaced, not written through; each arrived with one name"))
}

fn undeletable(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    all_done(&trial.run("leave-locked", ["/workspace", "40"])?)?;
    let kept = trial.kept()?;
    if !kept.join("locked").symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(Verdict::no_control("nothing was left"));
    }
    trial.diff(&[])?;
    trial.discard()?;
    if kept.exists() {
        return Ok(Verdict::broke("it is still there"));
    }
    Ok(Verdict::held("40 levels that deny everything: removed"))
}

fn setuid(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let report = trial.run("setuid", ["/workspace"])?;
    if report.tries.is_empty() {
        return Ok(Verdict::no_control("nothing was tried"));
    }
    let kept = trial.kept()?;
    // As a hole inside would have left it.
    let planted = kept.join("planted");
    testbed.file(&planted, "#!/bin/sh\n")?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
    std::fs::set_permissions(&planted, mode).map_err(TestBedError::io("set the bits"))?;
    trial.diff(&[])?;
    trial.apply(&[])?;
    let arrived = trial.tree.join("planted");
    let Ok(found) = arrived.symlink_metadata() else {
        return Ok(Verdict::no_control("the file did not arrive at all"));
    };
    if found.mode() & 0o7000 != 0 {
        return Ok(Verdict::broke(format!("it arrived with mode {:o}", found.mode() & 0o7777)));
    }
    let bits = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.mode() & 0o6000 != 0);
    let others = std::fs::read_dir(&trial.tree).into_iter().flatten().flatten();
    if let Some(other) = others.map(|entry| entry.path()).find(|path| bits(path)) {
        return Ok(Verdict::broke(format!("{} has a bit", other.display())));
    }
    Ok(Verdict::held("arrived without the bits"))
}
