//! Control files that were not there before a run: told at its end, and moved where somebody asks for it.

use std::io::IsTerminal;
use std::time::Duration;

use belljar::record::Outcome;
use belljar::spec::{NewControlFile, OsText, WorkspaceReport};
use belljar::workspace::{Quarantined, quarantine};

use super::changes::{LONGEST_NAME, MOST_NAMED, shortened};
use super::prompt;
use crate::report::{self, DIM, WARN};

/// How long a question at the end of a run waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Control files that were not there before, by their names inside.
pub(super) fn lines(report: &WorkspaceReport) -> Vec<String> {
    let name = |file: &NewControlFile| {
        let path = OsText::from(file.target.as_path().join(file.path.as_path()));
        shortened(&path, LONGEST_NAME)
    };
    let mut lines: Vec<String> = report.new_control.iter().take(MOST_NAMED).map(name).collect();
    let unnamed = report.new_control.len().saturating_sub(MOST_NAMED) as u64;
    let more = report.new_control_more + unnamed;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// What was moved out of the operator's tree.
pub(super) fn tell_quarantined(done: &Quarantined) {
    for path in &done.others {
        report::eprintln(&format!(
            "{path} is gone or was changed since the run, and was left alone"
        ));
    }
    if done.unnamed > 0 {
        report::eprintln(&format!("{} more are counted in the record and not named", done.unnamed));
    }
    let directory = OsText::from(done.directory.as_path());
    match done.moved.len() {
        0 if !done.moved_before.is_empty() => {
            report::eprintln(&format!("nothing to move: they were moved to {directory} before"));
        }
        0 => report::eprintln("nothing to move: this run left no new control files"),
        1 => report::eprintln(&format!("moved 1 file to {directory}")),
        count => report::eprintln(&format!("moved {count} files to {directory}")),
    }
}

/// At the end of a run that made control files in a tree of the host. A person at a terminal is asked.
pub(super) fn tell_end(outcome: &Outcome) {
    let Some(report) = &outcome.workspace else { return };
    if report.new_control.is_empty() && report.new_control_more == 0 {
        return;
    }
    let tail = outcome.id.tail();
    report::eprintln(&format!(
        "{DIM}belljar {tail}{DIM:#} {WARN}new control files, which decide what runs on the host:{WARN:#}"
    ));
    lines(report).iter().for_each(|line| report::eprintln(&format!("  {line}")));
    let hint = format!("to move them to the run's directory: belljar apply --quarantine {tail}");
    // A person who is asleep must not keep the run's caller waiting.
    let is_attended = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
    match is_attended.then(|| {
        prompt::confirm_within(ANSWER_WITHIN, "Move them out of your tree, to the run's directory?")
    }) {
        Some(Ok(true)) => {
            let moved = super::open_home()
                .map_err(|error| error.to_string())
                .and_then(|home| quarantine(&home, &outcome.id).map_err(|error| error.to_string()));
            match moved {
                Ok(done) => tell_quarantined(&done),
                Err(error) => report::eprintln(&format!("{WARN}error:{WARN:#} {error}")),
            }
        }
        Some(Ok(false)) => report::eprintln(&format!("they stay; {hint}")),
        Some(Err(_)) | None => report::eprintln(&hint),
    }
}
