//! `belljar diff`: prints a run's changes to its overlay trees.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anstream::ColorChoice;
use belljar::review;
use belljar::spec::text::escape;
use belljar::spec::{OsText, RunId};
use belljar::workspace::unified::Shown;
use belljar::workspace::{Change, Changes, OpenTree, What, below_root};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::changes::GitData;
use super::descriptor::{is_closed, write_all};
use super::{CommandResult, EXIT_INCOMPLETE, changes, exit_code, find_or_newest, open_home};
use crate::cli::DiffArgs;
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN};

/// How many bytes are read to count lines; further files are shown by their size.
pub(super) const MAX_COUNTED_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
#[error("{path} is neither in the run nor in the tree; belljar diff {run} lists the changes")]
struct NoSuchPath {
    path: OsText,
    run: String,
}

pub(crate) fn run(args: &DiffArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &DiffArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_or_newest(&home, args.run.as_deref())?.id;
    let mut trees = review::changed_trees(&home, &run)?;
    for (tree, found) in &mut trees {
        found.changes.retain(|change| is_wanted(tree, change, &args.paths));
    }
    // A mistyped path must not look like a path without changes.
    for path in &args.paths {
        let one = std::slice::from_ref(path);
        let mut all = trees
            .iter()
            .flat_map(|(tree, found)| found.changes.iter().map(move |change| (tree, change)));
        let is_cut = trees.iter().any(|(_, found)| found.cut);
        let is_there = trees.iter().any(|(tree, _)| {
            let (source, target) = (tree.note.source.as_path(), tree.note.target.as_path());
            below_root(path, source, target).is_some_and(|below| tree.knows(&below))
        });
        if !is_cut && !is_there && !all.any(|(tree, change)| is_wanted(tree, change, one)) {
            let path = OsText::from(path.as_path());
            return Err(NoSuchPath {
                path,
                run: args.run.clone().unwrap_or_else(|| run.to_string()),
            }
            .into());
        }
    }
    // A path of a repository that was named is listed.
    let gits = match args.all || !args.paths.is_empty() {
        true => GitData::Listed,
        false => GitData::Counted,
    };
    let any = trees.iter().any(|(_, found)| !found.changes.is_empty());
    if args.json {
        let trees = trees.iter().map(|(tree, found)| TreeShown { tree, found }).collect();
        report::json(&AllShown { run: &run, trees })?;
    } else if args.patch {
        for (tree, found) in &trees {
            let shown = |change: &&Change| {
                gits == GitData::Listed || changes::git_data_dir(tree, change).is_none()
            };
            for change in found.changes.iter().filter(shown) {
                match show_patch(&tree.patch(change)?) {
                    Err(error) if is_closed(&error) => return Ok(0),
                    shown => shown?,
                }
            }
        }
    } else if args.name_only {
        let names = trees.iter().flat_map(|(_, found)| &found.changes);
        report::out(&names.map(|change| format!("{}\n", change.path)).collect::<String>());
    } else {
        let many = trees.len() > 1;
        let mut page = String::new();
        for (tree, found) in &trees {
            if many && !found.changes.is_empty() {
                page.push_str(&format!("{BOLD}{}{BOLD:#}\n", tree.note.target));
            }
            let mut budget = MAX_COUNTED_BYTES;
            let listed = found.changes.iter().map(|change| {
                let counted = count(tree, change, &mut budget);
                (change, counted)
            });
            page.push_str(&changes::page(tree, listed, gits, found.cut));
        }
        if !any {
            page.push_str("no changes\n");
        }
        report::out(&page);
    }
    Ok(if any && args.exit_code { EXIT_INCOMPLETE } else { 0 })
}

/// Whether a change is at or below one of the paths.
fn is_wanted(tree: &OpenTree, change: &Change, paths: &[PathBuf]) -> bool {
    let is_below = |path: &OsText| {
        let (source, target) = (tree.note.source.as_path(), tree.note.target.as_path());
        let mut wanted = paths.iter().filter_map(|path| below_root(path, source, target));
        wanted.any(|wanted| path.as_path().starts_with(wanted))
    };
    let from = match &change.what {
        What::Renamed { from } => Some(from),
        _ => None,
    };
    paths.is_empty() || is_below(&change.path) || from.is_some_and(is_below)
}

/// Counts changed lines. `None` if the budget is used up, or the files cannot be read any more.
pub(super) fn count(tree: &OpenTree, change: &Change, budget: &mut u64) -> Option<Shown> {
    let sizes = [&change.before, &change.after].into_iter().flatten().map(|facts| facts.size);
    *budget = budget.checked_sub(sizes.sum())?;
    tree.shown(change).ok()
}

#[derive(Serialize)]
struct AllShown<'a> {
    run: &'a RunId,
    trees: Vec<TreeShown<'a>>,
}

struct TreeShown<'a> {
    tree: &'a OpenTree,
    found: &'a Changes,
}

/// Serializes one change after the other, since there may be very many.
impl Serialize for TreeShown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tree, found } = self;
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("target", &tree.note.target)?;
        map.serialize_entry("source", &tree.note.source)?;
        map.serialize_entry("changes", &ChangesShown(self))?;
        map.serialize_entry("cut", &found.cut)?;
        map.end()
    }
}

struct ChangesShown<'a>(&'a TreeShown<'a>);

impl Serialize for ChangesShown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(TreeShown { tree, found }) = self;
        let mut budget = MAX_COUNTED_BYTES;
        let one = |change: &Change| as_json(change, count(tree, change, &mut budget));
        serializer.collect_seq(found.changes.iter().map(one))
    }
}

fn as_json(change: &Change, shown: Option<Shown>) -> Value {
    let mut value = serde_json::to_value(change).unwrap_or_default();
    if let (Value::Object(fields), Some(shown)) = (&mut value, shown) {
        match shown {
            Shown::Lines(diff) => {
                fields.insert("added".to_owned(), diff.added.into());
                fields.insert("removed".to_owned(), diff.removed.into());
            }
            Shown::Binary => drop(fields.insert("binary".to_owned(), true.into())),
            Shown::Nothing => {}
        }
    }
    value
}

/// Prints a patch: the exact bytes, or escaped text with colours on a terminal.
pub(super) fn show_patch(patch: &[u8]) -> io::Result<()> {
    let colored = anstream::AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    if !colored && !io::stdout().is_terminal() {
        return write_all(rustix::stdio::stdout(), patch);
    }
    let mut page = String::new();
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let text: Vec<String> = line.split(|byte| *byte == b'\t').map(escape).collect();
        let text = text.join("\t");
        let style = match line.first() {
            Some(b'+') if !line.starts_with(b"+++ ") => GOOD,
            Some(b'-') if !line.starts_with(b"--- ") => BAD,
            Some(b'@') => DIM,
            Some(b' ') | None => anstyle::Style::new(),
            Some(b'\\') => WARN,
            Some(_) => BOLD,
        };
        page.push_str(&format!("{style}{text}{style:#}\n"));
    }
    report::out(&page);
    Ok(())
}
