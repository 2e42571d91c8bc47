//! Allow lists that must allow nothing: empty, absent, misspelled.

use belljar_spec::Clause;

use super::trial::{DialogueResults, allowed, control, of_run, short, spell};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, tls};
use crate::testbed::{Run, TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[Case {
    name: "net.empty-list",
    attack: "get out with an empty list, with none, and with a misspelled one",
    clause: Clause::NetSealed,
    severity: Severity::Critical,
    run: empty_list,
}];

fn dialogues() -> Vec<Dialogue> {
    let inside = || [tls("ok.example"), get("ok.example", "/"), Step::AttemptResult];
    vec![
        allowed(),
        Dialogue::tunnel("ok.example:443", inside()),
        Dialogue::socks("ok.example", 443, inside()),
    ]
}

fn empty_list(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let place = testbed.place()?;
    let spelled = spell(&dialogues())?;
    for (name, text) in [("empty", "[network]\nallow = []\n"), ("none", "[network]\n"), ("no", "")]
    {
        let manifest = place.join(format!("{name}.toml"));
        testbed.file(&manifest, text)?;
        let run = Run::in_world(testbed, "dialogues").manifest(manifest).arg(&spelled);
        if let Some(how) = got_out(&of_run(testbed, &run)?) {
            return Ok(Verdict::broke(format!("with {text:?}: {how}")));
        }
    }
    for text in ["[network]\nalow = [\"ok.example\"]\n", "[netwrok]\nallow = [\"ok.example\"]\n"] {
        let manifest = place.join("wrong.toml");
        testbed.file(&manifest, text)?;
        let world = testbed.world()?;
        world.reset()?;
        let seen = testbed
            .inside(&Run::in_world(testbed, "dialogues").manifest(manifest).arg(&spelled))?;
        if seen.probe_report().is_some() || seen.code == Some(0) {
            return Ok(Verdict::broke(format!("with {text:?} the run was started")));
        }
        if let Some(at) = world.seen()?.accepts.keys().next() {
            return Ok(Verdict::broke(format!("with {text:?} {at} was reached")));
        }
    }
    let without = control(testbed, &dialogues())?;
    if let Some(one) = dialogues().iter().find(|one| !without.was_answered(&one.what)) {
        let probe_report = short(without.probe_report(&one.what));
        return Ok(Verdict::no_control(format!("without a check, {}: {probe_report}", one.what)));
    }
    Ok(Verdict::held("nothing got out of 3 runs; 2 misspelled manifests were refused"))
}

fn got_out(tried: &DialogueResults) -> Option<String> {
    let reached = tried.seen.accepts.keys().next().map(|at| format!("{at} was reached"));
    let asked = tried.seen.queries.keys().next().map(|name| format!("somebody asked for {name}"));
    reached.or(asked)
}
