//! `belljar apply`: applies a run's changes to the user's tree.

use belljar::home::Home;
use belljar::review;
use belljar::spec::text::escape;
use belljar::spec::{Hint, OsText, RunId};
use belljar::store;
use belljar::workspace::{self, Change, Conflict, Draft, HowFar, OnConflict, OpenTree, Recovery};
use serde_json::{Value, json};

use super::changes::GitData;
use super::diff::{MAX_COUNTED_BYTES, count};
use super::{
    CommandResult, EXIT_INCOMPLETE, changes, control_files, exit_code, hunks, open_home, prompt,
};
use crate::cli::ApplyArgs;
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Lines shown of a conflict; the rest is counted.
const MAX_CONFLICT_LINES: usize = 20;

pub(crate) fn run(args: &ApplyArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &ApplyArgs) -> CommandResult {
    let home = open_home()?;
    let run = store::find(&home, &args.run)?;
    if args.quarantine {
        return quarantine(&home, &run.id, args.json);
    }
    let on_conflict = if args.theirs { OnConflict::TakeTheRuns } else { OnConflict::Refuse };
    let select = |tree: &OpenTree| review::selection(tree, &args.paths);
    let mut draft = Draft::make(&home, &run.id, select, on_conflict)?;
    review::refuse_unknown(&draft, &args.paths, &args.run)?;
    if draft.recovery == Recovery::Undone {
        report::eprintln(&format!(
            "{WARN}warning:{WARN:#} an earlier apply was interrupted; the tree is back to its state before it"
        ));
    }
    if draft.has_conflicts() {
        if args.json {
            report::json(&as_json(&draft, args, Some("conflicts")))?;
        } else {
            show_conflicts(&draft);
        }
        return Ok(EXIT_INCOMPLETE);
    }
    if args.interactive {
        hunks::choose(&mut draft)?;
    } else if !args.json {
        report::out(&page(&draft));
    }
    if args.dry_run {
        if args.json {
            report::json(&as_json(&draft, args, None))?;
        }
        return Ok(0);
    }
    if draft.is_empty() {
        workspace::note_reviewed(&home, &draft);
        if args.json {
            report::json(&as_json(&draft, args, None))?;
        } else {
            report::eprintln("nothing to apply");
        }
        return Ok(0);
    }
    if !args.yes && !args.interactive && !prompt::confirm(&question(&draft))? {
        report::eprintln("nothing was applied");
        return Ok(EXIT_INCOMPLETE);
    }
    let applied = workspace::apply(&home, &draft)?;
    if let Some(untidy) = &applied.untidy {
        let why = error_chain(untidy);
        report::eprintln(&format!(
            "{WARN}warning:{WARN:#} applied, but temporary files could not be removed: {why}"
        ));
    }
    if args.json {
        report::json(&as_json(&draft, args, None))?;
        return Ok(0);
    }
    for path in &applied.not_empty {
        report::eprintln(&format!("{path} stays: it contains files that the run did not delete"));
    }
    report::eprintln(&format!("{GOOD}applied{GOOD:#} {}", counted(applied.changes)));
    Ok(0)
}

/// Moves the new control files of the run's record into the run's directory.
fn quarantine(home: &Home, run: &RunId, json: bool) -> CommandResult {
    let done = workspace::quarantine(home, run)?;
    if json {
        report::json(&json!({ "moved": done.moved, "left": done.others, "unnamed": done.unnamed,
            "directory": OsText::from(done.directory) }))?;
        return Ok(0);
    }
    control_files::print_quarantined(&done);
    Ok(0)
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut chain = error.to_string();
    let mut next = error.source();
    while let Some(inner) = next {
        chain.push_str(&format!(": {inner}"));
        next = inner.source();
    }
    chain
}

/// Lists what would be applied, merged and held back.
fn page(draft: &Draft) -> String {
    let mut page = String::new();
    let many = draft.trees.len() > 1;
    for tree in &draft.trees {
        if many && !(tree.todo.is_empty() && tree.withheld.is_empty()) {
            page.push_str(&format!("{BOLD}{}{BOLD:#}\n", tree.tree.note.target));
        }
        // Files that were named are not held back.
        let chosen = tree.todo.iter().map(|todo| {
            let mut change = todo.change.clone();
            change.withheld = None;
            change
        });
        let chosen: Vec<Change> = chosen.collect();
        let mut budget = MAX_COUNTED_BYTES;
        let listed = chosen.iter().map(|change| {
            let counted = count(&tree.tree, change, &mut budget);
            (change, counted)
        });
        page.push_str(&changes::page(&tree.tree, listed, GitData::Counted, false));
        let merged = tree.todo.iter().filter(|todo| todo.merged);
        let merged: Vec<_> =
            merged.map(|todo| (&todo.change, "changed here too: merged")).collect();
        changes::section(&mut page, WARN, "merged with your changes", &merged);
        let held = |how_far: HowFar| {
            let held = tree.withheld.iter().filter_map(move |change| {
                let held = change.withheld.as_ref()?;
                (held.how_far == how_far).then_some((change, held.why.as_str()))
            });
            held.collect::<Vec<_>>()
        };
        let title = "held back; name them to apply them";
        changes::section(&mut page, WARN, title, &held(HowFar::UnlessNamed));
        changes::section(&mut page, BAD, "never applied", &held(HowFar::Always));
        if !tree.stays.is_empty() {
            page.push_str(&format!("\n{DIM}not touched:{DIM:#}\n"));
            for path in &tree.stays {
                page.push_str(&format!("    {path}\n"));
                if tree.tree.is_git_index(path) {
                    page.push_str(&format!("      {DIM}`git reset` brings it up to date{DIM:#}\n"));
                }
            }
        }
    }
    page
}

fn question(draft: &Draft) -> String {
    let trees: Vec<String> = draft
        .trees
        .iter()
        .filter(|tree| !tree.todo.is_empty())
        .map(|tree| tree.tree.note.source.to_string())
        .collect();
    let count = draft.trees.iter().map(|tree| tree.todo.len()).sum();
    format!("Apply {} to {}?", counted(count), trees.join(", "))
}

fn counted(count: usize) -> String {
    match count {
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    }
}

fn show_conflicts(draft: &Draft) {
    let mut page = String::new();
    let mut count = 0;
    for tree in &draft.trees {
        for conflict in &tree.conflicts {
            count += 1;
            page.push_str(&format!("  {BAD}C{BAD:#} {}\n", conflict.path));
            page.push_str(&format!("      {DIM}{}{DIM:#}\n", conflict.what.words()));
            show_lines(&mut page, conflict);
        }
    }
    report::out(&page);
    let conflicts = if count == 1 { "1 conflict" } else { &format!("{count} conflicts") };
    report::eprintln(&format!(
        "{BAD}{conflicts}:{BAD:#} the tree has changed since the run started; nothing was applied"
    ));
    report::hint(Hint::ApplyOthers);
}

fn show_lines(page: &mut String, conflict: &Conflict) {
    for clash in &conflict.clashes {
        page.push_str(&format!("      {DIM}line {}{DIM:#}\n", clash.line));
        for (title, text) in [("here", &clash.ours), ("the run", &clash.theirs)] {
            page.push_str(&format!("      {BOLD}{title}{BOLD:#}\n"));
            let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
            for line in lines.iter().take(MAX_CONFLICT_LINES) {
                let line = escape(line.strip_suffix(b"\n").unwrap_or(line));
                page.push_str(&format!("        {line}\n"));
            }
            match lines.len() {
                0 => page.push_str(&format!("        {DIM}(removed){DIM:#}\n")),
                more if more > MAX_CONFLICT_LINES => {
                    page.push_str(&format!(
                        "        {DIM}… {} more{DIM:#}\n",
                        more - MAX_CONFLICT_LINES
                    ));
                }
                _ => {}
            }
        }
    }
}

fn as_json(draft: &Draft, args: &ApplyArgs, why_not: Option<&str>) -> Value {
    let trees = draft.trees.iter().map(|tree| {
        let conflicts = tree.conflicts.iter().map(|conflict| {
            let clashes = conflict.clashes.iter().map(|clash| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                json!({
                    "line": clash.line, "base": text(&clash.base), "here": text(&clash.ours),
                    "run": text(&clash.theirs),
                })
            });
            json!({
                "path": conflict.path, "what": conflict.what,
                "lines": clashes.collect::<Vec<_>>(),
            })
        });
        let merged = tree.todo.iter().filter(|todo| todo.merged);
        json!({
            "target": tree.tree.note.target,
            "source": tree.tree.note.source,
            "changes": tree.todo.iter().map(|todo| &todo.change).collect::<Vec<_>>(),
            "merged": merged.map(|todo| &todo.change.path).collect::<Vec<_>>(),
            "withheld": tree.withheld,
            "unchanged": tree.stays,
            "conflicts": conflicts.collect::<Vec<_>>(),
        })
    });
    let applied = why_not.is_none() && !args.dry_run;
    json!({
        "run": draft.run, "applied": applied, "dry_run": args.dry_run,
        "trees": trees.collect::<Vec<_>>(),
    })
}
