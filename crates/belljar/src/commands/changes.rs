//! Formats a list of changes: letters, names, line counts and warnings.

use std::collections::BTreeMap;
use std::path::Path;

use anstyle::Style;
use belljar::record::Outcome;
use belljar::spec::autorun;
use belljar::spec::text::escape;
use belljar::spec::{AppliedReport, AutorunChange, AutorunFile, OsText, WorkspaceReport};
use belljar::workspace::unified::Shown;
use belljar::workspace::{Change, Facts, HowFar, Kind, OpenTree, What};

use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN, folded};

/// The column of the line counts.
const NUMBERS_COLUMN: usize = 60;
/// The indent of notes under a name.
const INDENT: usize = 6;

/// Longer names are cut in the middle.
pub(super) const MAX_NAME_LENGTH: usize = 200;

/// How git's own data (objects, references, logs) is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitData {
    Counted,
    Listed,
}

/// The git directory that the path is in, if the path is data that nothing executes; empty for the tree itself.
pub(super) fn git_data_dir<'c>(tree: &OpenTree, change: &'c Change) -> Option<&'c Path> {
    if change.autorun.is_some() || change.withheld.is_some() {
        return None;
    }
    // A directory whose entries may execute is listed.
    let entry = change.path.as_path().join("entry");
    if autorun::classify(&entry).is_some() {
        return None;
    }
    if tree.is_git_directory() {
        return autorun::in_git_directory(&entry).is_none().then_some(Path::new(""));
    }
    let above = change.path.as_path().ancestors().skip(1);
    above.filter(|path| path.file_name().is_some_and(|name| name == ".git")).last()
}

/// Lists every change with its line counts, if known; then the sections with warnings.
pub(super) fn page<'a>(
    tree: &OpenTree,
    listed: impl Iterator<Item = (&'a Change, Option<Shown>)>,
    gits: GitData,
    cut: bool,
) -> String {
    let mut page = String::new();
    let mut sum = Sum::default();
    let (mut later, mut held, mut never) = (Vec::new(), Vec::new(), Vec::new());
    let mut repositories: BTreeMap<&Path, u64> = BTreeMap::new();
    for (change, shown) in listed {
        sum.add(change, shown.as_ref());
        match git_data_dir(tree, change).filter(|_| gits == GitData::Counted) {
            Some(repository) => *repositories.entry(repository).or_default() += 1,
            None => page.push_str(&line(change, shown.as_ref())),
        }
        // A held-back file is listed only there, with the same reason.
        if let (Some(mark), None) = (&change.autorun, &change.withheld) {
            later.push((change, mark.why));
        }
        match &change.withheld {
            Some(why) if why.how_far == HowFar::Always => never.push((change, why.why.as_str())),
            Some(why) => held.push((change, why.why.as_str())),
            None => {}
        }
    }
    for (repository, count) in repositories {
        let name = match repository.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => shortened(&OsText::from(repository), MAX_NAME_LENGTH),
        };
        let paths = if count == 1 { "1 path" } else { &format!("{count} paths") };
        page.push_str(&format!(
            "  {WARN}M{WARN:#} {name}/  {DIM}{paths} of git's own data{DIM:#}\n"
        ));
    }
    if sum.paths() > 0 {
        page.push_str(&format!("{}\n", sum.text()));
    }
    section(&mut page, WARN, "runs later on the host", &later);
    section(&mut page, WARN, "held back by apply unless named", &held);
    section(&mut page, BAD, "never applied", &never);
    if cut {
        let warning = "there are too many changes to list them all";
        page.push_str(&format!("\n{BAD}cut:{BAD:#} {warning}\n"));
    }
    page
}

pub(super) fn section(page: &mut String, style: Style, title: &str, entries: &[(&Change, &str)]) {
    if entries.is_empty() {
        return;
    }
    page.push_str(&format!("\n{style}{title}:{style:#}\n"));
    for (change, why) in entries {
        let (letter, style) = letter(change);
        let why = folded(why, INDENT);
        page.push_str(&format!("  {style}{letter}{style:#} {}\n", name(change)));
        page.push_str(&format!("{:INDENT$}{DIM}{why}{DIM:#}\n", ""));
    }
}

pub(super) fn letter(change: &Change) -> (char, Style) {
    match change.what {
        What::Created => ('A', GOOD),
        What::Modified => ('M', WARN),
        What::Mode => ('m', WARN),
        What::Replaced => ('T', WARN),
        What::Deleted => ('D', BAD),
        What::Renamed { .. } => ('R', WARN),
    }
}

/// The path, with a slash after a directory.
pub(super) fn name(change: &Change) -> String {
    let facts = change.after.as_ref().or(change.before.as_ref());
    let is_directory = facts.is_some_and(|facts| facts.kind == Kind::Directory);
    let slash = if is_directory { "/" } else { "" };
    let path = shortened(&change.path, MAX_NAME_LENGTH);
    match &change.what {
        What::Renamed { from } => format!("{} -> {path}{slash}", shortened(from, MAX_NAME_LENGTH)),
        _ => format!("{path}{slash}"),
    }
}

fn line(change: &Change, shown: Option<&Shown>) -> String {
    let (letter, style) = letter(change);
    let name = name(change);
    let notes = notes(change, shown);
    let width = name.chars().count() + 4;
    let line = format!("  {style}{letter}{style:#} {name}");
    match notes {
        None => format!("{line}\n"),
        Some((plain, colored)) if width < NUMBERS_COLUMN && NUMBERS_COLUMN + plain.len() <= 80 => {
            format!("{line}{:>1$}{colored}\n", "", NUMBERS_COLUMN - width)
        }
        Some((plain, colored)) if width + 2 + plain.len() <= 80 => format!("{line}  {colored}\n"),
        Some((_, colored)) => format!("{line}\n{:INDENT$}{colored}\n", ""),
    }
}

/// Line counts or other notes, without colours and with them.
fn notes(change: &Change, shown: Option<&Shown>) -> Option<(String, String)> {
    let mut plain = Vec::new();
    let mut colored = Vec::new();
    let mut note = |text: String, style: Style| {
        colored.push(format!("{style}{text}{style:#}"));
        plain.push(text);
    };
    match (&change.before, &change.after, &change.what) {
        (Some(before), Some(after), What::Replaced) => {
            note(format!("{} -> {}", kind(before), kind(after)), DIM);
        }
        (_, Some(after), _) if !matches!(after.kind, Kind::File | Kind::Directory) => {
            let to =
                after.target.as_ref().map(|to| format!(" to {}", shortened(to, MAX_TARGET_LENGTH)));
            note(format!("{}{}", kind(after), to.unwrap_or_default()), DIM);
        }
        (_, Some(after), _) => match shown {
            Some(Shown::Lines(diff)) => {
                if diff.added > 0 {
                    note(format!("+{}", diff.added), GOOD);
                }
                if diff.removed > 0 {
                    note(format!("-{}", diff.removed), BAD);
                }
            }
            Some(Shown::Binary) => note(format!("binary, {}", size(after)), DIM),
            None if after.kind == Kind::File => note(size(after), DIM),
            Some(Shown::Nothing) | None => {}
        },
        (Some(before), None, _) => match shown {
            Some(Shown::Lines(diff)) if before.kind == Kind::File && diff.removed > 0 => {
                note(format!("-{}", diff.removed), BAD);
            }
            Some(Shown::Binary) => note(format!("binary, {}", size(before)), DIM),
            _ => {}
        },
        (None, None, _) => {}
    }
    if let (Some(before), Some(after)) = (&change.before, &change.after)
        && before.mode != after.mode
        && before.kind == after.kind
        && after.kind != Kind::Link
    {
        note(format!("{:04o} -> {:04o}", before.mode, after.mode), DIM);
    }
    (!plain.is_empty()).then(|| (plain.join(" "), colored.join(" ")))
}

const MAX_TARGET_LENGTH: usize = 40;

pub(super) fn shortened(path: &OsText, longest: usize) -> String {
    let text = path.to_string();
    let count = text.chars().count();
    if count <= longest {
        return text;
    }
    let head: String = text.chars().take(longest / 2).collect();
    let tail: String = text.chars().skip(count - longest / 2).collect();
    format!("{head}…{tail}")
}

fn size(facts: &Facts) -> String {
    match facts.size {
        bytes if bytes < 10 << 10 => format!("{bytes} bytes"),
        bytes if bytes < 10 << 20 => format!("{} KiB", bytes >> 10),
        bytes if bytes < 10 << 30 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} GiB", bytes >> 30),
    }
}

fn kind(facts: &Facts) -> &'static str {
    match facts.kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
        Kind::Fifo => "FIFO",
        Kind::Socket => "socket",
        Kind::Device => "device",
    }
}

#[derive(Default)]
struct Sum {
    created: u64,
    modified: u64,
    deleted: u64,
    renamed: u64,
    added: usize,
    removed: usize,
}

impl Sum {
    fn add(&mut self, change: &Change, shown: Option<&Shown>) {
        match change.what {
            What::Created => self.created += 1,
            What::Modified | What::Mode | What::Replaced => self.modified += 1,
            What::Deleted => self.deleted += 1,
            What::Renamed { .. } => self.renamed += 1,
        }
        let sides = [&change.before, &change.after];
        let is_file = sides.into_iter().flatten().any(|facts| facts.kind == Kind::File);
        if let (true, Some(Shown::Lines(diff))) = (is_file, shown) {
            self.added += diff.added;
            self.removed += diff.removed;
        }
    }

    fn paths(&self) -> u64 {
        self.created + self.modified + self.deleted + self.renamed
    }

    fn text(&self) -> String {
        let lines = match (self.added, self.removed) {
            (0, 0) => String::new(),
            (added, removed) => format!("; lines +{added} -{removed}"),
        };
        let kinds = kinds(self.created, self.modified, self.deleted, self.renamed);
        format!("{BOLD}{}{BOLD:#}: {kinds}{lines}", changed(self.paths()))
    }
}

fn changed(count: u64) -> String {
    match count {
        1 => "1 path changed".to_owned(),
        count => format!("{count} paths changed"),
    }
}

fn kinds(created: u64, modified: u64, deleted: u64, renamed: u64) -> String {
    let parts =
        [(created, "added"), (modified, "modified"), (deleted, "deleted"), (renamed, "renamed")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, verb)| format!("{count} {verb}")).collect::<Vec<_>>().join(", ")
}

/// Names listed at the end of a run; the record has the others.
pub(super) const MAX_NAMED: usize = 20;

/// Lists the files that the host will execute, each with the reason. `indent` applies to all lines but the
/// first of each entry.
pub(super) fn autorun_lines(report: &WorkspaceReport, indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for file in report.autorun.iter().take(MAX_NAMED) {
        let AutorunFile { target, path, why, change, .. } = file;
        let (letter, style) = match change {
            AutorunChange::Created => ('A', GOOD),
            AutorunChange::Modified => ('M', WARN),
            AutorunChange::Deleted => ('D', BAD),
        };
        let name = OsText::from(target.as_path().join(path.as_path()));
        let name = shortened(&name, MAX_NAME_LENGTH);
        let why = folded(&escape(why.as_bytes()), indent + 4);
        let pad = indent + 4;
        lines.push(format!("{style}{letter}{style:#} {name}\n{:pad$}{DIM}{why}{DIM:#}", ""));
    }
    let more = report.autorun_more + report.autorun.len().saturating_sub(MAX_NAMED) as u64;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    if report.cut {
        let warning = "the tree was too large to be scanned completely: there may be others";
        lines.push(folded(warning, indent));
    }
    lines
}

/// Printed at the end of a run that could write to the host.
pub(super) fn print_autorun_files(outcome: &Outcome) {
    let Some(report) = &outcome.workspace else { return };
    // `show` says that the scan was incomplete; repeating it after every run in a large tree is noise.
    if report.autorun.is_empty() {
        return;
    }
    let lines = autorun_lines(report, 2);
    let tail = outcome.id.tail();
    report::eprintln(&format!("{DIM}belljar {tail}{DIM:#} {WARN}runs later on the host:{WARN:#}"));
    lines.iter().for_each(|line| report::eprintln(&format!("  {line}")));
}

/// Printed at the end of a run with overlay trees.
pub(super) fn print_summary(outcome: &Outcome) {
    print_change_count(&outcome.id, outcome.workspace.as_ref());
}

pub(super) fn print_change_count(run: &belljar::spec::RunId, report: Option<&WorkspaceReport>) {
    let Some(WorkspaceReport { created, modified, deleted, renamed, failed, applied, .. }) = report
    else {
        return;
    };
    let tail = run.tail();
    if let Some(why) = failed {
        let why = belljar::spec::text::escape(why.as_bytes());
        report::eprintln(&format!(
            "{WARN}warning:{WARN:#} the run's changes could not be determined: {why}"
        ));
    }
    let count = created + modified + deleted + renamed;
    if count > 0 && applied.is_none() {
        let look = format!("{BOLD}belljar diff {tail}{BOLD:#}");
        report::eprintln(&format!("{DIM}belljar {tail}{DIM:#} {}; {look}", changed(count)));
    }
}

/// Printed at the end of a run whose `rw` trees were sent. What was not applied is always said; that all was, only to
/// people.
pub(super) fn print_applied(outcome: &Outcome, verbose: bool) {
    let Some(applied) = outcome.workspace.as_ref().and_then(|report| report.applied.as_ref())
    else {
        return;
    };
    let tail = outcome.id.tail();
    match applied_line(applied, tail) {
        Some(line) if applied.is_incomplete() => {
            report::eprintln(&format!("{WARN}warning:{WARN:#} {line}"));
        }
        Some(line) if verbose => report::eprintln(&format!("{DIM}belljar {tail}{DIM:#} {line}")),
        _ => {}
    }
}

/// What became of the changes to `rw` trees that were sent; nothing where there were none.
pub(super) fn applied_line(applied: &AppliedReport, run: &str) -> Option<String> {
    let next = format!("{BOLD}belljar diff {run}{BOLD:#}, then {BOLD}belljar apply {run}{BOLD:#}");
    let AppliedReport { changes, held_back, conflicts, failed } = applied;
    if let Some(why) = failed {
        let why = belljar::spec::text::escape(why.as_bytes());
        return Some(format!("the run's changes were not applied: {why}; {next}"));
    }
    if *conflicts > 0 {
        return Some(format!(
            "the run's changes were not applied: {} here too while it ran; {next}",
            changed(*conflicts)
        ));
    }
    let done = match changes {
        1 => "1 change applied".to_owned(),
        changes => format!("{changes} changes applied"),
    };
    match (changes, held_back) {
        (0, 0) => None,
        (_, 0) => Some(done),
        (_, held_back) => Some(format!("{done}, {held_back} held back; {next}")),
    }
}
