//! Attacks on the run's record and on the channel to the supervisor.

use std::fs::File;
use std::process::Stdio;

use belljar_spec::Clause;

use super::judge::{EBADF, EINVAL, EPERM, ESPIPE, broken, hosts_own, refusals, summary};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "audit.truncate-output",
        attack: "truncate its own output, or write over its beginning",
        clause: Clause::AuditOutside,
        severity: Severity::Critical,
        run: truncate_output,
    },
    Case {
        name: "audit.forge-events",
        attack: "write events to every descriptor there could be",
        clause: Clause::AuditOutside,
        severity: Severity::Critical,
        run: forge_events,
    },
    Case {
        name: "audit.reach-record",
        attack: "find the record and write to it",
        clause: Clause::AuditOutside,
        severity: Severity::Critical,
        run: reach_record,
    },
];

/// Runs with its output in a file, as a shell's `>` does it, and returns what the file holds.
fn into_file(
    testbed: &TestBed,
    mut command: std::process::Command,
) -> Result<String, TestBedError> {
    let path = testbed.place()?.join("output");
    testbed.file(&path, "")?;
    let open = || File::options().append(true).open(&path).map(Stdio::from);
    let io = || TestBedError::io("open the output");
    command.stdin(Stdio::null()).stdout(open().map_err(io())?).stderr(open().map_err(io())?);
    let mut child = command.spawn().map_err(TestBedError::io("start with a file as output"))?;
    child.wait().map_err(TestBedError::io("wait"))?;
    std::fs::read_to_string(&path).map_err(TestBedError::io("read the output"))
}

fn truncate_output(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let output = into_file(testbed, testbed.command(&Run::of(&workspace, "truncate-output"))?)?;
    let inside: Option<crate::probe_report::ProbeReport> =
        output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let Some(inside) = inside else {
        return Ok(Verdict::broke(format!("the probe's report is lost: {output:?}")));
    };
    if !output.starts_with("first line\n") || output.contains("FORGED") {
        return Ok(Verdict::broke(format!("the host's file holds {output:?}")));
    }
    if let Some(verdict) = broken(&inside, &refusals(testbed, &[EINVAL, ESPIPE], &[EPERM])) {
        return Ok(verdict);
    }
    let output = into_file(testbed, testbed.control(Unprotected::Directly, ["truncate-output"]))?;
    if output.starts_with("first line\n") {
        return Ok(Verdict::no_control("outside, the line was kept too"));
    }
    Ok(Verdict::held(summary(&inside)))
}

fn forge_events(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const CODE: i32 = 41;
    let (workspace, place) = (testbed.workspace()?, testbed.place()?);
    let result = place.join("result.json");
    let code = CODE.to_string();
    let run = Run::of(&workspace, "write-everywhere").arg(&code).flag("--result").flag(&result);
    let seen = testbed.inside(&run)?;
    let inside = seen.report()?;
    // Standard input is a pipe's reading end or /dev/null: writing to it is harmless where it works.
    let others: Vec<_> = inside.tries.iter().filter(|tried| tried.what != "descriptor 0").collect();
    if let Some(open) = others.first() {
        return Ok(Verdict::broke(format!("{}: {}", open.what, open.answer)));
    }
    let report = std::fs::read(&result).map_err(TestBedError::io("read the result"))?;
    let report: serde_json::Value = serde_json::from_slice(&report)
        .map_err(|error| TestBedError::Unexpected(format!("the result is no JSON: {error}")))?;
    if seen.code != Some(CODE) || report["reason"] != "exited" {
        return Ok(Verdict::broke(format!(
            "it ended with {}, reason {}",
            seen.end(),
            report["reason"]
        )));
    }
    // A descriptor that is open takes what is written.
    let leaked = place.join("leaked");
    testbed.file(&leaked, "")?;
    let flags = rustix::fs::OFlags::WRONLY; // and not CLOEXEC
    let kept = rustix::fs::open(&leaked, flags, rustix::fs::Mode::empty())
        .map_err(|error| TestBedError::io("leak a descriptor")(error.into()))?;
    let control = testbed
        .outside(
            Unprotected::Directly,
            ["write-everywhere".as_ref(), code.as_ref(), leaked.as_os_str()],
        )?
        .report()?;
    drop(kept);
    let written = std::fs::metadata(&leaked).is_ok_and(|found| found.len() > 0);
    if !written || !control.tries.iter().any(|tried| tried.answer == AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("outside, no descriptor took anything either"));
    }
    Ok(Verdict::held(format!(
        "{} descriptors: {EBADF}; the true end came back",
        inside.get("tried")
    )))
}

fn reach_record(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let names = ["*.jsonl", "run.json", "writable-trees", "format", "live", "runs", "stdout.bin"];
    let inside = testbed.inside(&Run::of(&workspace, "find").arg("/").args(names))?.report()?;
    let home = testbed.belljar_home();
    let argv = ["find".as_ref(), home.as_os_str()]
        .into_iter()
        .chain(names.iter().map(|name| name.as_ref()));
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    // Other programs have files of these names; it is the record if identity or content match.
    if let Some(verdict) = hosts_own(&inside, &control, &[]) {
        return Ok(verdict);
    }
    let copied = inside.marks.iter().find(|(_, mark)| {
        control.marks.values().any(|of_the_record| mark.has_same_content(of_the_record))
    });
    if let Some((path, _)) = copied {
        return Ok(Verdict::broke(format!("{path} has a record's content")));
    }
    // By name too, beside what is mounted.
    let paths = ["/home/agent/../run.json", "/home/run.json", "/home/agent/../events.jsonl"];
    let read = testbed.inside(&Run::of(&workspace, "read").args(paths).arg(&home))?.report()?;
    let at_home =
        testbed.outside(Unprotected::Directly, ["read".as_ref(), home.as_os_str()])?.report()?;
    for outside in [&control, &at_home] {
        if let Some(verdict) = hosts_own(&read, outside, &[]) {
            return Ok(verdict);
        }
    }
    let wrote = control
        .tries
        .iter()
        .any(|tried| tried.what.ends_with("run.json") && tried.answer == AttemptResult::Succeeded);
    if !wrote {
        return Ok(Verdict::no_control("outside, no record was found either"));
    }
    Ok(Verdict::held(format!("not among {} names", inside.get("entries"))))
}
