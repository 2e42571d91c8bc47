//! Runs the same dialogues through belljar's proxy and through an open proxy, and compares the servers' counts.

use crate::case::Verdict;
use crate::dialogue::Dialogue;
use crate::probe_report::ProbeReport;
use crate::testbed::{Run, TestBed, TestBedError};
use crate::world::ServerCounts;
use crate::world::names::OK;
use crate::world::pages::ECHO;

/// What came of it on one arm.
#[derive(Debug)]
pub(super) struct DialogueResults {
    pub(super) report: ProbeReport,
    pub(super) seen: ServerCounts,
}

impl DialogueResults {
    pub(super) fn probe_report(&self, dialogue: &str) -> &str {
        self.report.get(dialogue)
    }

    /// A server answered.
    pub(super) fn was_answered(&self, dialogue: &str) -> bool {
        self.probe_report(dialogue).contains(ECHO)
    }

    /// The dialogues that were not refused: by HTTP, by SOCKS, or by an immediate close.
    pub(super) fn not_refused<'a>(&'a self, but: &'a [&str]) -> Option<&'a str> {
        let tries = self.report.tries.iter().map(|tried| tried.what.as_str());
        let mut tries = tries.filter(|what| !but.contains(what));
        tries.find(|what| self.was_answered(what))
    }
}

/// One that has to be allowed, so that a refusal of the others means something.
pub(super) fn allowed() -> Dialogue {
    Dialogue::plain("ok.example")
}

pub(super) const ALLOWED: &str = "GET http://ok.example/";

/// Where that one ends up.
pub(super) fn ok_at(port: u16) -> String {
    format!("{OK}:{port}")
}

pub(super) fn spell(dialogues: &[Dialogue]) -> Result<String, TestBedError> {
    serde_json::to_string(dialogues).map_err(|error| TestBedError::Unexpected(error.to_string()))
}

/// Through belljar's proxy, in a run with these flags.
pub(super) fn inside(
    testbed: &TestBed,
    flags: &[&str],
    dialogues: &[Dialogue],
) -> Result<DialogueResults, TestBedError> {
    let run = flags.iter().fold(Run::in_world(testbed, "dialogues"), Run::flag);
    of_run(testbed, &run.arg(spell(dialogues)?))
}

pub(super) fn of_run(testbed: &TestBed, run: &Run) -> Result<DialogueResults, TestBedError> {
    let world = testbed.world()?;
    world.reset()?;
    let report = testbed.inside(run)?.report()?;
    Ok(DialogueResults { report, seen: world.seen()? })
}

/// Through the proxy that asks nothing.
pub(super) fn control(
    testbed: &TestBed,
    dialogues: &[Dialogue],
) -> Result<DialogueResults, TestBedError> {
    let world = testbed.world()?;
    world.reset()?;
    let report = testbed.in_world(["dialogues", &spell(dialogues)?])?.report()?;
    Ok(DialogueResults { report, seen: world.seen()? })
}

/// The usual judgement: the allowed one got through, no other did, and the servers were reached nowhere but
/// where it goes; the control reached all of those.
pub(super) fn judge(
    testbed: &TestBed,
    flags: &[&str],
    dialogues: &[Dialogue],
    forbidden: &[String],
) -> Result<Verdict, TestBedError> {
    let all: Vec<Dialogue> = [allowed()].into_iter().chain(dialogues.iter().cloned()).collect();
    let inside = inside(testbed, flags, &all)?;
    if let Some(verdict) = wrong(&inside, &[&ok_at(80), &ok_at(443)]) {
        return Ok(verdict);
    }
    let control = control(testbed, dialogues)?;
    if let Some(unseen) = forbidden.iter().find(|at| control.seen.accepted(at) == 0) {
        return Ok(Verdict::no_control(format!(
            "without a check, {unseen} was not reached either"
        )));
    }
    Ok(Verdict::held(summary(dialogues.len(), forbidden.len())))
}

/// What shows that it did not hold, or that it was no trial.
pub(super) fn wrong(inside: &DialogueResults, expected: &[&str]) -> Option<Verdict> {
    if let Some(verdict) = unfit(inside) {
        return Some(verdict);
    }
    let beyond = inside.seen.beyond(expected);
    if let Some(at) = beyond.first() {
        return Some(Verdict::broke(format!("{at} was reached ({} such places)", beyond.len())));
    }
    let through = inside.not_refused(&[ALLOWED])?;
    Some(Verdict::broke(format!("{through}: {}", short(inside.probe_report(through)))))
}

/// Without the allowed one, nothing is shown.
pub(super) fn unfit(inside: &DialogueResults) -> Option<Verdict> {
    let probe_report = inside.probe_report(ALLOWED);
    let got_through = probe_report.contains(ECHO) && inside.seen.accepted(&ok_at(80)) > 0;
    let why = format!("what is allowed did not get through: {}", short(probe_report));
    (!got_through).then_some(Verdict::Failed { why })
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(200).collect::<String>().escape_debug().to_string()
}

fn summary(attempts: usize, places: usize) -> String {
    match places {
        0 => format!("{attempts} attempts refused"),
        1 => format!("{attempts} attempts refused, 0 connections to 1 place"),
        _ => format!("{attempts} attempts refused, 0 connections to {places} places"),
    }
}
