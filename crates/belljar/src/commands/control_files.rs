//! Lists the control files that a run created, and moves them into the run's directory on request.

use std::io::IsTerminal;
use std::time::Duration;

use belljar::record::Outcome;
use belljar::spec::{Hint, NewControlFile, OsText, WorkspaceReport};
use belljar::workspace::{Quarantined, quarantine};

use super::changes::{MAX_NAME_LENGTH, MAX_NAMED, shortened};
use super::prompt;
use crate::report::{self, DIM, WARN};

/// How long the question at the end of a run waits for an answer.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The new control files, by their paths inside.
pub(super) fn lines(report: &WorkspaceReport) -> Vec<String> {
    let name = |file: &NewControlFile| {
        let path = OsText::from(file.target.as_path().join(file.path.as_path()));
        shortened(&path, MAX_NAME_LENGTH)
    };
    let mut lines: Vec<String> =
        report.new_control_files.iter().take(MAX_NAMED).map(name).collect();
    let unnamed = report.new_control_files.len().saturating_sub(MAX_NAMED) as u64;
    let more = report.new_control_files_more + unnamed;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Prints what was moved out of the user's tree.
pub(super) fn print_quarantined(done: &Quarantined) {
    for path in &done.others {
        report::eprintln(&format!(
            "{path} was removed or changed since the run, so it was not moved"
        ));
    }
    if done.unnamed > 0 {
        report::eprintln(&format!(
            "{} more were counted, but their names are not in the record",
            done.unnamed
        ));
    }
    let directory = OsText::from(done.directory.as_path());
    match done.moved.len() {
        0 if !done.moved_before.is_empty() => {
            report::eprintln(&format!("nothing to move: the files are already in {directory}"));
        }
        0 => report::eprintln("nothing to move: this run created no control files"),
        1 => report::eprintln(&format!("moved 1 file to {directory}")),
        count => report::eprintln(&format!("moved {count} files to {directory}")),
    }
}

/// Printed at the end of a run that created control files in a host tree. On a terminal, asks whether to
/// move them.
pub(super) fn print_new(outcome: &Outcome) {
    let Some(report) = &outcome.workspace else { return };
    if report.new_control_files.is_empty() && report.new_control_files_more == 0 {
        return;
    }
    let tail = outcome.id.tail();
    report::eprintln(&format!(
        "{DIM}belljar {tail}{DIM:#} {WARN}new control files, which decide what runs on the host:{WARN:#}"
    ));
    lines(report).iter().for_each(|line| report::eprintln(&format!("  {line}")));
    let hint = Hint::Quarantine { run: tail.to_owned() };
    // The question has a timeout: the user may be away, and the caller of the run waits.
    let is_attended = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
    match is_attended.then(|| {
        prompt::confirm_within(PROMPT_TIMEOUT, "Move them from your tree to the run's directory?")
    }) {
        Some(Ok(true)) => {
            let moved = super::open_home()
                .map_err(|error| error.to_string())
                .and_then(|home| quarantine(&home, &outcome.id).map_err(|error| error.to_string()));
            match moved {
                Ok(done) => print_quarantined(&done),
                Err(error) => report::eprintln(&format!("{WARN}error:{WARN:#} {error}")),
            }
        }
        Some(Ok(false)) => report::eprintln(&format!("not moved; {hint}")),
        Some(Err(_)) | None => report::eprintln(&hint.to_string()),
    }
}
