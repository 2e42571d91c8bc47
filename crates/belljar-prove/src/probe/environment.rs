//! Reports what leaks in from the host, and attacks the record.

use std::io::Write;

use belljar_linux::sys::attempt;
use rustix::io::Errno;

use super::{Arguments, Probed};
use crate::probe_report::{AttemptResult, ProbeReport};

/// Looks for a text in the environment and the arguments of every process that can be seen.
pub(super) fn canary(args: &Arguments<'_>) -> Probed {
    // Given backwards, so that our own arguments do not hold it.
    let wanted: Vec<u8> = args.text(0, "a canary, backwards")?.bytes().rev().collect();
    let holds = |bytes: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
    let mut report = ProbeReport::default();
    for pid in super::processes::visible()? {
        for file in ["environ", "cmdline"] {
            let path = format!("/proc/{pid}/{file}");
            let answer = match std::fs::read(&path) {
                Ok(bytes) if holds(&bytes) => AttemptResult::Succeeded,
                Ok(_) => AttemptResult::Errno(libc::ENOENT),
                Err(error) => AttemptResult::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
            };
            report.answered(path, answer);
        }
    }
    let own = std::env::vars_os().any(|(_, value)| holds(value.as_encoded_bytes()));
    report.tried("own environment", if own { Ok(()) } else { Err(Errno::NOENT) });
    let own: Vec<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    report.fact("variables", own.join(","));
    Ok(report)
}

/// Writes a line, then tries to take it back.
pub(super) fn truncate_output(_: &Arguments<'_>) -> Probed {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "first line").and_then(|()| out.flush()); // the reader checks it
    let mut report = ProbeReport::default();
    for (name, fd) in [("stdout", 1), ("stderr", 2)] {
        report.tried(format!("truncate {name}"), attempt::truncate_descriptor(fd));
        report
            .tried(format!("write at the start of {name}"), attempt::write_at_start(fd, b"FORGED"));
    }
    Ok(report)
}

/// Writes something that looks like an event, and something that looks like nothing, to every number
/// that could be a descriptor. With a path, only to descriptors of that file: on the unprotected arm the
/// others are somebody's.
pub(super) fn write_everywhere(args: &Arguments<'_>) -> Probed {
    let only = args.path(1, "a path").ok();
    let is_meant = |fd: i32| match only {
        None => true,
        Some(only) => std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to == only),
    };
    let event = b"{\"kind\":\"run.stop\",\"data\":{\"reason\":\"exited\",\"code\":0}}\n";
    let mut report = ProbeReport::default();
    for fd in (0..1024).filter(|fd| *fd != 1 && *fd != 2 && is_meant(*fd)) {
        let answer = AttemptResult::of(attempt::write_to(fd, event));
        let _ = attempt::write_to(fd, &[0xff; 64]); // the answer is the same
        if !answer.is(Errno::BADF) {
            report.answered(format!("descriptor {fd}"), answer);
        }
    }
    report.fact("tried", 1022);
    report.fact("exit", args.number(0, "an exit code")?);
    Ok(report)
}
