//! The record and the channel.

use std::fs::File;
use std::process::Stdio;

use belljar_spec::Clause;

use super::judge::{EBADF, EINVAL, EPERM, ESPIPE, broken, hosts_own, refusals, summary};
use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Stage, StageError, Unprotected};

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
fn into_file(stage: &Stage, mut command: std::process::Command) -> Result<String, StageError> {
    let path = stage.place()?.join("output");
    stage.file(&path, "")?;
    let open = || File::options().append(true).open(&path).map(Stdio::from);
    let io = || StageError::io("open the output");
    command.stdin(Stdio::null()).stdout(open().map_err(io())?).stderr(open().map_err(io())?);
    let mut child = command.spawn().map_err(StageError::io("start with a file as output"))?;
    child.wait().map_err(StageError::io("wait"))?;
    std::fs::read_to_string(&path).map_err(StageError::io("read the output"))
}

fn truncate_output(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let output = into_file(stage, stage.command(&Run::of(&workspace, "truncate-output"))?)?;
    let inside: Option<crate::answer::Told> =
        output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let Some(inside) = inside else {
        return Ok(Verdict::broke(format!("what the probe told is lost: {output:?}")));
    };
    if !output.starts_with("first line\n") || output.contains("FORGED") {
        return Ok(Verdict::broke(format!("the host's file holds {output:?}")));
    }
    if let Some(verdict) = broken(&inside, &refusals(stage, &[EINVAL, ESPIPE], &[EPERM])) {
        return Ok(verdict);
    }
    let output = into_file(stage, stage.control(Unprotected::Directly, ["truncate-output"]))?;
    if output.starts_with("first line\n") {
        return Ok(Verdict::no_control("outside, the line was kept too"));
    }
    Ok(Verdict::held(summary(&inside)))
}

fn forge_events(stage: &Stage) -> Result<Verdict, StageError> {
    const CODE: i32 = 41;
    let (workspace, place) = (stage.workspace()?, stage.place()?);
    let result = place.join("result.json");
    let code = CODE.to_string();
    let run = Run::of(&workspace, "write-everywhere").arg(&code).flag("--result").flag(&result);
    let seen = stage.inside(&run)?;
    let inside = seen.told()?;
    // Standard input is a pipe's reading end or /dev/null: writing to it is harmless where it works.
    let others: Vec<_> = inside.tries.iter().filter(|tried| tried.what != "descriptor 0").collect();
    if let Some(open) = others.first() {
        return Ok(Verdict::broke(format!("{}: {}", open.what, open.answer)));
    }
    let told = std::fs::read(&result).map_err(StageError::io("read the result"))?;
    let told: serde_json::Value = serde_json::from_slice(&told)
        .map_err(|error| StageError::Unexpected(format!("the result is no JSON: {error}")))?;
    if seen.code != Some(CODE) || told["reason"] != "exited" {
        return Ok(Verdict::broke(format!(
            "it ended with {}, reason {}",
            seen.end(),
            told["reason"]
        )));
    }
    // A descriptor that is open takes what is written.
    let leaked = place.join("leaked");
    stage.file(&leaked, "")?;
    let flags = rustix::fs::OFlags::WRONLY; // and not CLOEXEC
    let kept = rustix::fs::open(&leaked, flags, rustix::fs::Mode::empty())
        .map_err(|error| StageError::io("leak a descriptor")(error.into()))?;
    let control = stage
        .outside(
            Unprotected::Directly,
            ["write-everywhere".as_ref(), code.as_ref(), leaked.as_os_str()],
        )?
        .told()?;
    drop(kept);
    let written = std::fs::metadata(&leaked).is_ok_and(|found| found.len() > 0);
    if !written || !control.tries.iter().any(|tried| tried.answer == Answer::Succeeded) {
        return Ok(Verdict::no_control("outside, no descriptor took anything either"));
    }
    Ok(Verdict::held(format!(
        "{} descriptors: {EBADF}; the true end came back",
        inside.get("tried")
    )))
}

fn reach_record(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let names = ["*.jsonl", "run.json", "writable-trees", "format", "live", "runs", "stdout.bin"];
    let inside = stage.inside(&Run::of(&workspace, "find").arg("/").args(names))?.told()?;
    let home = stage.belljar_home();
    let words = ["find".as_ref(), home.as_os_str()]
        .into_iter()
        .chain(names.iter().map(|name| name.as_ref()));
    let control = stage.outside(Unprotected::Directly, words)?.told()?;
    // Other programs have files of these names; it is the record if it is, or says, the same.
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
    let read = stage.inside(&Run::of(&workspace, "read").args(paths).arg(&home))?.told()?;
    let at_home =
        stage.outside(Unprotected::Directly, ["read".as_ref(), home.as_os_str()])?.told()?;
    for outside in [&control, &at_home] {
        if let Some(verdict) = hosts_own(&read, outside, &[]) {
            return Ok(verdict);
        }
    }
    let wrote = control
        .tries
        .iter()
        .any(|tried| tried.what.ends_with("run.json") && tried.answer == Answer::Succeeded);
    if !wrote {
        return Ok(Verdict::no_control("outside, no record was found either"));
    }
    Ok(Verdict::held(format!("not among {} names", inside.get("entries"))))
}
