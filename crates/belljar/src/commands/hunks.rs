//! `apply -i`: asks about each file and each hunk, as `git add -p` does.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use belljar::spec::OsText;
use belljar::workspace::unified::{self, Hunk, Line, Sign};
use belljar::workspace::{Draft, Kind, Todo, TreeDraft, What};

use super::prompt::{self, AskError};
use super::{changes, diff};
use crate::report;

const HELP: &str = "y  apply this\nn  skip this\nq  quit: skip this and everything after it\n\
    a  apply this and the rest (for a hunk: the rest of the file)\n\
    d  skip this and the rest (for a hunk: the rest of the file)\ns  split the hunk\n?  print this help";

/// Removes from the draft what the user does not choose.
pub(super) fn choose(draft: &mut Draft) -> Result<(), AskError> {
    let mut mode = AskMode::Ask;
    for tree in &mut draft.trees {
        let todo = std::mem::take(&mut tree.todo);
        let implied = implied(&todo);
        let mut kept: Vec<Todo> = Vec::new();
        let mut refused: BTreeSet<PathBuf> = BTreeSet::new();
        for mut one in todo {
            let path = one.change.path.as_path().to_owned();
            if implied.contains(&path) {
                // Follows the decision about its parent.
                if !path.ancestors().skip(1).any(|above| refused.contains(above)) {
                    kept.push(one);
                }
                continue;
            }
            match ask_about(tree, &mut one, &mut mode)? {
                Choice::Apply => kept.push(one),
                Choice::Skip => drop(refused.insert(path)),
            }
        }
        tree.todo = without_empty_directories(kept, &implied);
    }
    Ok(())
}

/// Whether the following questions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskMode {
    Ask,
    ApplyAll,
    SkipAll,
}

enum Choice {
    Apply,
    Skip,
}

/// Paths without a question: directories that come with files in them, and the content of a directory
/// that becomes a file.
fn implied(todo: &[Todo]) -> BTreeSet<PathBuf> {
    let mut implied = BTreeSet::new();
    let replaced: BTreeSet<PathBuf> = todo
        .iter()
        .filter(|one| one.change.what == What::Replaced)
        .map(|one| one.change.path.as_path().to_owned())
        .collect();
    for one in todo {
        let path = one.change.path.as_path();
        let is_below = |other: &Todo| {
            other.change.path.as_path() != path && other.change.path.as_path().starts_with(path)
        };
        let below_replaced = path.ancestors().skip(1).any(|above| replaced.contains(above));
        let is_filled = is_directory(one)
            && matches!(one.change.what, What::Created | What::Deleted)
            && todo.iter().any(is_below);
        if below_replaced || is_filled {
            implied.insert(path.to_owned());
        }
    }
    implied
}

fn is_directory(todo: &Todo) -> bool {
    let facts = todo.change.after.as_ref().or(todo.change.before.as_ref());
    facts.is_some_and(|facts| facts.kind == Kind::Directory)
}

/// Drops new directories whose content was skipped.
fn without_empty_directories(mut todo: Vec<Todo>, implied: &BTreeSet<PathBuf>) -> Vec<Todo> {
    let others: Vec<OsText> =
        todo.iter().filter(|one| !is_directory(one)).map(|one| one.change.path.clone()).collect();
    todo.retain(|one| {
        let path = one.change.path.as_path();
        !is_directory(one)
            || !implied.contains(path) // the user was asked about it
            || one.change.what != What::Created
            || others.iter().any(|other| other.as_path().starts_with(path))
            || one.change.after.is_none()
    });
    todo
}

fn ask_about(tree: &TreeDraft, todo: &mut Todo, mode: &mut AskMode) -> Result<Choice, AskError> {
    match mode {
        AskMode::Ask => {}
        AskMode::ApplyAll => return Ok(Choice::Apply),
        AskMode::SkipAll => return Ok(Choice::Skip),
    }
    if let Some((before, after)) = tree.texts(todo) {
        return ask_hunks(todo, &before, &after, mode);
    }
    let (letter, style) = changes::letter(&todo.change);
    report::out(&format!("  {style}{letter}{style:#} {}\n", changes::name(&todo.change)));
    if let Ok(patch) = tree.tree.patch(&todo.change) {
        let _ = diff::show_patch(&patch); // if the output is closed, the question is still asked
    }
    loop {
        match key(prompt::answer("Apply this? [y,n,q,a,d,?]")?).as_str() {
            "y" => return Ok(Choice::Apply),
            "n" => return Ok(Choice::Skip),
            "a" => {
                *mode = AskMode::ApplyAll;
                return Ok(Choice::Apply);
            }
            "q" | "d" => {
                *mode = AskMode::SkipAll;
                return Ok(Choice::Skip);
            }
            _ => report::eprintln(HELP),
        }
    }
}

/// The end of the input counts as `q`.
fn key(answer: Option<String>) -> String {
    answer.map_or_else(|| "q".to_owned(), |answer| answer.to_ascii_lowercase())
}

fn ask_hunks(
    todo: &mut Todo,
    before: &[u8],
    after: &[u8],
    mode: &mut AskMode,
) -> Result<Choice, AskError> {
    let (letter, style) = changes::letter(&todo.change);
    report::out(&format!("  {style}{letter}{style:#} {}\n", changes::name(&todo.change)));
    let mut waiting: VecDeque<Hunk> = unified::lines(before, after).hunks.into();
    let total = waiting.len();
    let (mut chosen, mut skipped) = (Vec::new(), 0);
    while let Some(hunk) = waiting.pop_front() {
        let _ = diff::show_patch(&hunk.to_bytes());
        let number = (chosen.len() + skipped + 1).min(total.max(1));
        let parts = split(&hunk);
        let keys = if parts.len() > 1 { "y,n,q,a,d,s,?" } else { "y,n,q,a,d,?" };
        let question = format!("({number}/{}) Apply this hunk? [{keys}]", total.max(number));
        match key(prompt::answer(&question)?).as_str() {
            "y" => chosen.push(hunk),
            "n" => skipped += 1,
            "s" if parts.len() > 1 => {
                parts.into_iter().rev().for_each(|part| waiting.push_front(part))
            }
            "a" => {
                chosen.push(hunk);
                chosen.extend(waiting.drain(..));
            }
            "d" => {
                skipped += 1 + waiting.len();
                waiting.clear();
            }
            "q" => {
                skipped += 1 + waiting.len();
                waiting.clear();
                *mode = AskMode::SkipAll;
            }
            _ => {
                report::eprintln(HELP);
                waiting.push_front(hunk);
            }
        }
    }
    if chosen.is_empty() {
        return Ok(Choice::Skip);
    }
    if skipped > 0 {
        todo.take_text(with(before, &chosen));
    }
    Ok(Choice::Apply)
}

/// Applies hunks, which are in order and do not overlap.
fn with(before: &[u8], hunks: &[Hunk]) -> Vec<u8> {
    let lines = unified::split(before);
    let mut text = Vec::new();
    let mut done = 0;
    for hunk in hunks {
        lines[done..hunk.before.start].iter().for_each(|line| text.extend_from_slice(line));
        for Line { sign, text: line } in &hunk.lines {
            match sign {
                Sign::Same | Sign::Added => text.extend_from_slice(line),
                Sign::Removed => {}
            }
        }
        done = hunk.before.end;
    }
    lines[done..].iter().for_each(|line| text.extend_from_slice(line));
    text
}

/// Splits a hunk at the unchanged lines between two changes; they belong to the part before them.
fn split(hunk: &Hunk) -> Vec<Hunk> {
    let mut parts: Vec<Hunk> = Vec::new();
    let (mut before, mut after) = (hunk.before.start, hunk.after.start);
    let mut last = Sign::Same;
    for line in &hunk.lines {
        let begins = line.sign != Sign::Same && last == Sign::Same;
        let has_changes = |part: &Hunk| part.lines.iter().any(|line| line.sign != Sign::Same);
        if parts.is_empty() || begins && parts.last().is_some_and(has_changes) {
            parts.push(Hunk { before: before..before, after: after..after, lines: Vec::new() });
        }
        last = line.sign;
        before += usize::from(line.sign != Sign::Added);
        after += usize::from(line.sign != Sign::Removed);
        if let Some(part) = parts.last_mut() {
            part.before.end = before;
            part.after.end = after;
            part.lines.push(line.clone());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    const BEFORE: &[u8] = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n";
    const AFTER: &[u8] = b"one\n2\nthree\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\nfifteen";

    #[test]
    fn all_hunks_make_the_new_text_and_none_the_old() {
        let hunks = unified::lines(BEFORE, AFTER).hunks;
        assert_eq!(hunks.len(), 2);
        assert_eq!(with(BEFORE, &hunks), AFTER);
        assert_eq!(with(BEFORE, &[]), BEFORE);
        let mut first = BEFORE.to_vec();
        first.splice(0..6, *b"one\n2\nthree\n");
        assert_eq!(with(BEFORE, &hunks[..1]), first);
    }

    #[test]
    fn a_hunk_is_split_between_its_changes() {
        let hunk = unified::lines(BEFORE, AFTER).hunks.remove(0);
        let parts = split(&hunk);
        assert_eq!(parts.len(), 2, "{parts:?}");
        assert_eq!(with(BEFORE, &parts), with(BEFORE, &[hunk]));
        assert!(with(BEFORE, &parts[..1]).starts_with(b"one\n2\n3\n"));
        assert!(with(BEFORE, &parts[1..]).starts_with(b"1\n2\nthree\n"));
        assert_eq!(split(&parts[0]).len(), 1);
    }
}
