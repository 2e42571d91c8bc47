//! A run that changes its tree while the host reads it.

use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::Clause;

use super::trial::{SECRET, Trial, naive_has_secret, says_secret};
use crate::case::{Case, Severity, Verdict};
use crate::testbed::{Run, TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "collect.swap-race",
        attack: "swap a directory for a link while diff and apply work on it",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: swap_race,
    },
    Case {
        name: "collect.copy-race",
        attack: "swap a directory for a link while cp copies it out",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: copy_race,
    },
];

const LASTS: Duration = Duration::from_secs(6);
/// The control may take its time to see the other side of the swap.
const WITHIN: Duration = Duration::from_secs(15);

/// A directory and a link to the secrets are exchanged in a live run.
fn swapping<'a>(
    testbed: &'a TestBed,
) -> Result<(Trial<'a>, std::path::PathBuf, crate::testbed::Running), TestBedError> {
    let trial = Trial::new(testbed)?;
    let secrets = trial.secrets()?;
    let run = Run::over(&trial.tree, "swap-own", &trial.name)
        .args(["/workspace/mine", "60000"])
        .arg(&secrets);
    let mut running = testbed.start_inside(&run)?;
    running.wait_for_line("flipping")?;
    Ok((trial, secrets, running))
}

fn untouched(secrets: &Path) -> bool {
    let only_it = std::fs::read_dir(secrets).map(Iterator::count).unwrap_or(0) == 1;
    only_it && std::fs::read(secrets.join("secret")).ok().as_deref() == Some(SECRET.as_bytes())
}

fn swap_race(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (trial, secrets, running) = swapping(testbed)?;
    let kept = trial.kept()?;
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < LASTS {
        for seen in [
            testbed.tool(["diff", "-p", &trial.name])?,
            testbed.tool(["apply", "--yes", &trial.name, "mine"])?,
        ] {
            if says_secret(&seen) {
                return Ok(Verdict::broke("a command read through the link"));
            }
        }
        let mine = trial.tree.join("mine/d");
        let through = !mine.is_symlink() && mine.join("secret").exists();
        if through || !untouched(&secrets) {
            return Ok(Verdict::broke("apply went through the link"));
        }
        rounds += 1;
    }
    let control = Instant::now();
    let mut open_proxy = false;
    while !open_proxy && control.elapsed() < WITHIN {
        open_proxy = naive_has_secret(&kept);
    }
    running.stop()?;
    if !open_proxy {
        return Ok(Verdict::no_control("a program that follows links met none either"));
    }
    Ok(Verdict::held(format!("{rounds} rounds of diff and apply, nothing read or written")))
}

fn copy_race(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (trial, secrets, running) = swapping(testbed)?;
    let into = testbed.place()?;
    let began = Instant::now();
    let (mut rounds, mut copied) = (0, 0);
    // A busy machine may take long until one copy is whole.
    while began.elapsed() < LASTS || (copied == 0 && began.elapsed() < WITHIN) {
        let target = into.join(rounds.to_string());
        let from = format!("{}:/workspace/mine", trial.name);
        let seen = testbed.tool(["cp".as_ref(), from.as_ref(), target.as_os_str()])?;
        copied += usize::from(seen.code == Some(0));
        let mut got = Vec::new();
        super::trial::collect_naively(&target, &mut got);
        if says_secret(&seen) || got.iter().any(|(_, content)| content == SECRET.as_bytes()) {
            return Ok(Verdict::broke("the copy holds the host's secret"));
        }
        rounds += 1;
    }
    let (kept, control) = (trial.kept()?, Instant::now());
    let mut open_proxy = naive_has_secret(&kept);
    while copied == 0 && !open_proxy && control.elapsed() < WITHIN {
        open_proxy = naive_has_secret(&kept);
    }
    running.stop()?;
    if !untouched(&secrets) {
        return Ok(Verdict::broke("the secret's directory was changed"));
    }
    if copied == 0 && !open_proxy {
        return Ok(Verdict::no_control("no copy was made, and nothing swapped"));
    }
    Ok(Verdict::held(format!("{rounds} copies, {copied} whole, none with the secret")))
}
