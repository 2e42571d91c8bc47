//! Attacks that look for the host's environment: variables, descriptors and secrets.

use belljar_spec::Clause;

use super::judge::{EACCES, ENOENT, broken, summary};
use crate::case::{Case, Severity, Verdict};
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "env.variables",
        attack: "find the launcher's variables, in /proc too",
        clause: Clause::EnvClean,
        severity: Severity::Critical,
        run: variables,
    },
    Case {
        name: "env.arguments",
        attack: "find the launcher's own arguments",
        clause: Clause::EnvClean,
        severity: Severity::High,
        run: arguments,
    },
];

const CANARY: &str = "canary-7f3a91";

fn backwards() -> String {
    CANARY.chars().rev().collect()
}

fn variables(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let run = Run::of(&workspace, "canary")
        .arg(backwards())
        .launcher_env("AWS_SECRET_ACCESS_KEY", CANARY);
    let inside = testbed.inside(&run)?.report()?;
    if let Some(verdict) = broken(&inside, &[ENOENT, EACCES]) {
        return Ok(verdict);
    }
    let expected = [
        "BELLJAR_RUN",
        "HOME",
        "LANG",
        "PATH",
        "TERM",
        "TZ",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "TMPDIR",
    ];
    if let Some(other) = inside.get("variables").split(',').find(|name| !expected.contains(name)) {
        return Ok(Verdict::broke(format!(
            "the variable {other} is set inside, and nobody named it"
        )));
    }
    let mut control = testbed.control(Unprotected::Directly, ["canary", &backwards()]);
    control.env("AWS_SECRET_ACCESS_KEY", CANARY);
    let control = crate::testbed::Running::start(&mut control, "the control")?.end()?.report()?;
    if control.answer("own environment") != Some(crate::probe_report::AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("outside, it was not found either"));
    }
    Ok(Verdict::held(summary(&inside)))
}

fn arguments(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let run = Run::of(&workspace, "canary")
        .arg(backwards())
        .flag("--label")
        .flag(format!("token={CANARY}"));
    let inside = testbed.inside(&run)?.report()?;
    if let Some(verdict) = broken(&inside, &[ENOENT, EACCES]) {
        return Ok(verdict);
    }
    // Another process with the same argument, which is found.
    let mut other = testbed.control(Unprotected::Directly, ["sleep", "5000", CANARY]);
    let other = crate::testbed::Running::start(&mut other, "a process to look for")?;
    let control = testbed.outside(Unprotected::Directly, ["canary", &backwards()])?.report()?;
    drop(other);
    if control.successes() == 0 {
        return Ok(Verdict::no_control("outside, it was not found either"));
    }
    Ok(Verdict::held(summary(&inside)))
}
