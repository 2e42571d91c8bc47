//! A list of changes for people: letters, names, and what to beware of.

use std::collections::BTreeMap;
use std::path::Path;

use anstyle::Style;
use belljar::record::Outcome;
use belljar::spec::autorun;
use belljar::spec::text::escape;
use belljar::spec::{AutorunChange, AutorunFile, OsText, WorkspaceReport};
use belljar::workspace::unified::Shown;
use belljar::workspace::{Change, Facts, HowFar, Kind, What};

use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN, folded};

/// Where the numbers begin; a longer name has them behind it.
const NUMBERS: usize = 60;
/// Under the names.
const INDENT: usize = 6;

/// A longer name is cut in the middle: it is there to be seen, not to be copied.
pub(super) const LONGEST_NAME: usize = 200;

/// What is told of a repository's own data: objects, references, logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitsOwn {
    Counted,
    Listed,
}

/// The repository's directory, where the path is of data that git keeps in it and nothing executes.
pub(super) fn gits_own(change: &Change) -> Option<&Path> {
    if change.later.is_some() || change.held.is_some() {
        return None;
    }
    // A directory whose entries decide about something is told.
    if autorun::classify(&change.path.as_path().join("entry")).is_some() {
        return None;
    }
    let above = change.path.as_path().ancestors().skip(1);
    above.filter(|path| path.file_name().is_some_and(|name| name == ".git")).last()
}

/// Every change with how it looks by lines, if that is known; then what is special about some.
pub(super) fn page<'a>(
    listed: impl Iterator<Item = (&'a Change, Option<Shown>)>,
    gits: GitsOwn,
    cut: bool,
) -> String {
    let mut page = String::new();
    let mut sum = Sum::default();
    let (mut later, mut held, mut never) = (Vec::new(), Vec::new(), Vec::new());
    let mut repositories: BTreeMap<&Path, u64> = BTreeMap::new();
    for (change, shown) in listed {
        sum.add(change, shown.as_ref());
        match gits_own(change).filter(|_| gits == GitsOwn::Counted) {
            Some(repository) => *repositories.entry(repository).or_default() += 1,
            None => page.push_str(&line(change, shown.as_ref())),
        }
        // What is held back is told there, with the same reason.
        if let (Some(mark), None) = (&change.later, &change.held) {
            later.push((change, mark.why));
        }
        match &change.held {
            Some(why) if why.how_far == HowFar::Always => never.push((change, why.why.as_str())),
            Some(why) => held.push((change, why.why.as_str())),
            None => {}
        }
    }
    for (repository, count) in repositories {
        let name = shortened(&OsText::from(repository), LONGEST_NAME);
        let paths = if count == 1 { "1 path" } else { &format!("{count} paths") };
        page.push_str(&format!(
            "  {WARN}M{WARN:#} {name}/  {DIM}{paths} of git's own data{DIM:#}\n"
        ));
    }
    if sum.paths() > 0 {
        page.push_str(&format!("{}\n", sum.words()));
    }
    section(&mut page, WARN, "runs later on the host", &later);
    section(&mut page, WARN, "held back by apply unless named", &held);
    section(&mut page, BAD, "never applied", &never);
    if cut {
        let words = "there are more changes than can be looked at: the list is not whole";
        page.push_str(&format!("\n{BAD}cut:{BAD:#} {words}\n"));
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

/// With a slash behind a directory.
pub(super) fn name(change: &Change) -> String {
    let facts = change.after.as_ref().or(change.before.as_ref());
    let is_directory = facts.is_some_and(|facts| facts.kind == Kind::Directory);
    let slash = if is_directory { "/" } else { "" };
    let path = shortened(&change.path, LONGEST_NAME);
    match &change.what {
        What::Renamed { from } => format!("{} -> {path}{slash}", shortened(from, LONGEST_NAME)),
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
        Some((plain, colored)) if width < NUMBERS && NUMBERS + plain.len() <= 80 => {
            format!("{line}{:>1$}{colored}\n", "", NUMBERS - width)
        }
        Some((plain, colored)) if width + 2 + plain.len() <= 80 => format!("{line}  {colored}\n"),
        Some((_, colored)) => format!("{line}\n{:INDENT$}{colored}\n", ""),
    }
}

/// Numbers of lines, or what else there is to say; without colours and with them.
fn notes(change: &Change, shown: Option<&Shown>) -> Option<(String, String)> {
    let mut plain = Vec::new();
    let mut colored = Vec::new();
    let mut say = |text: String, style: Style| {
        colored.push(format!("{style}{text}{style:#}"));
        plain.push(text);
    };
    match (&change.before, &change.after, &change.what) {
        (Some(before), Some(after), What::Replaced) => {
            say(format!("{} -> {}", kind(before), kind(after)), DIM);
        }
        (_, Some(after), _) if !matches!(after.kind, Kind::File | Kind::Directory) => {
            let to =
                after.target.as_ref().map(|to| format!(" to {}", shortened(to, LONGEST_TARGET)));
            say(format!("{}{}", kind(after), to.unwrap_or_default()), DIM);
        }
        (_, Some(after), _) => match shown {
            Some(Shown::Lines(diff)) => {
                if diff.added > 0 {
                    say(format!("+{}", diff.added), GOOD);
                }
                if diff.removed > 0 {
                    say(format!("-{}", diff.removed), BAD);
                }
            }
            Some(Shown::Binary) => say(format!("binary, {}", size(after)), DIM),
            None if after.kind == Kind::File => say(size(after), DIM),
            Some(Shown::Nothing) | None => {}
        },
        (Some(before), None, _) => match shown {
            Some(Shown::Lines(diff)) if before.kind == Kind::File && diff.removed > 0 => {
                say(format!("-{}", diff.removed), BAD);
            }
            Some(Shown::Binary) => say(format!("binary, {}", size(before)), DIM),
            _ => {}
        },
        (None, None, _) => {}
    }
    if let (Some(before), Some(after)) = (&change.before, &change.after)
        && before.mode != after.mode
        && before.kind == after.kind
        && after.kind != Kind::Link
    {
        say(format!("{:04o} -> {:04o}", before.mode, after.mode), DIM);
    }
    (!plain.is_empty()).then(|| (plain.join(" "), colored.join(" ")))
}

const LONGEST_TARGET: usize = 40;

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

    fn words(&self) -> String {
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
    let said =
        [(created, "made"), (modified, "changed"), (deleted, "removed"), (renamed, "renamed")];
    let said = said.iter().filter(|(count, _)| *count > 0);
    said.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Names that stand in full at the end of a run; the record has the others.
pub(super) const MOST_NAMED: usize = 20;

/// Files that execute on the host later, each with when; a line or two each. `indent`: of every line but the
/// first of each.
pub(super) fn later_lines(report: &WorkspaceReport, indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for file in report.later.iter().take(MOST_NAMED) {
        let AutorunFile { target, path, why, change, .. } = file;
        let (letter, style) = match change {
            AutorunChange::Created => ('A', GOOD),
            AutorunChange::Modified => ('M', WARN),
            AutorunChange::Deleted => ('D', BAD),
        };
        let name = OsText::from(target.as_path().join(path.as_path()));
        let name = shortened(&name, LONGEST_NAME);
        let why = folded(&escape(why.as_bytes()), indent + 4);
        let pad = indent + 4;
        lines.push(format!("{style}{letter}{style:#} {name}\n{:pad$}{DIM}{why}{DIM:#}", ""));
    }
    let more = report.later_more + report.later.len().saturating_sub(MOST_NAMED) as u64;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    if report.cut {
        let words = "the tree was too large to be looked at whole: there may be others";
        lines.push(folded(words, indent));
    }
    lines
}

/// At the end of a run that could write to the host.
pub(super) fn tell_later(outcome: &Outcome) {
    let Some(report) = &outcome.workspace else { return };
    // That not all was looked at is in `show`; it is no news at the end of every run in a large tree.
    if report.later.is_empty() {
        return;
    }
    let lines = later_lines(report, 2);
    let tail = outcome.id.tail();
    report::eprintln(&format!("{DIM}belljar {tail}{DIM:#} {WARN}runs later on the host:{WARN:#}"));
    lines.iter().for_each(|line| report::eprintln(&format!("  {line}")));
}

/// At the end of a run with overlay trees.
pub(super) fn tell_end(outcome: &Outcome) {
    tell_end_of(&outcome.id, outcome.workspace.as_ref());
}

pub(super) fn tell_end_of(run: &belljar::spec::RunId, report: Option<&WorkspaceReport>) {
    let Some(WorkspaceReport { created, modified, deleted, renamed, failed, .. }) = report else {
        return;
    };
    let tail = run.tail();
    if let Some(why) = failed {
        let why = belljar::spec::text::escape(why.as_bytes());
        report::eprintln(&format!("{WARN}warning:{WARN:#} what it changed is not known: {why}"));
    }
    let count = created + modified + deleted + renamed;
    if count > 0 {
        let look = format!("{BOLD}belljar diff {tail}{BOLD:#}");
        report::eprintln(&format!("{DIM}belljar {tail}{DIM:#} {}; {look}", changed(count)));
    }
}
