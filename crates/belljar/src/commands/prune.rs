//! `belljar prune`: removes old runs.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use belljar::config::{self, Invocation};
use belljar::home::Home;
use belljar::ledger::Ledger;
use belljar::retention::{self, PruneMode, PruneRules, Removal};
use belljar::spec::{self, MainCommand, Retention, RunId};
use belljar::store::{self, Which};
use belljar::workspace::is_unreviewed;

use super::{CommandResult, EXIT_INCOMPLETE, environment, exit_code, open_home, reconcile_first};
use crate::cli::PruneArgs;
use crate::report;

pub(crate) fn run(args: &PruneArgs) -> i32 {
    exit_code(act(args))
}

/// What was removed, or would be.
#[derive(Debug, Default)]
struct PruneReport {
    runs: Vec<RunId>,
    /// Runs whose files were removed, but not their records.
    sandboxes: Vec<RunId>,
    /// Runs that stay, because their changes were neither applied nor discarded.
    unreviewed: Vec<RunId>,
    failed: Vec<String>,
}

fn act(args: &PruneArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let report = if args.keep.is_some() || args.older_than.is_some() {
        by_rules(&home, args)?
    } else {
        by_retention(&home, args)?
    };
    if args.json {
        report::json(&serde_json::json!({
            "dry_run": args.dry_run, "runs": report.runs, "sandboxes": report.sandboxes,
            "unreviewed": report.unreviewed, "failed": report.failed,
        }))?;
    } else if args.quiet {
        let removed = report.runs.iter().chain(&report.sandboxes);
        report::out(&removed.map(|run| format!("{run}\n")).collect::<String>());
    } else {
        if report.runs.is_empty() && report.sandboxes.is_empty() {
            report::eprintln("nothing to remove");
        }
        let would = if args.dry_run { "would be " } else { "" };
        let whole = report.runs.iter().map(|run| format!("{run} {would}removed\n"));
        let parts = report.sandboxes.iter();
        let parts = parts.map(|run| format!("{run} {would}emptied; its record is kept\n"));
        report::out(&whole.chain(parts).collect::<String>());
        for run in &report.unreviewed {
            let run = run.tail();
            report::eprintln(&format!(
                "{run} is kept: its changes were neither applied nor discarded; belljar diff {run}"
            ));
        }
    }
    for failed in &report.failed {
        report::eprintln(&format!("error: {failed}"));
    }
    Ok(if report.failed.is_empty() { 0 } else { EXIT_INCOMPLETE })
}

fn by_rules(home: &Home, args: &PruneArgs) -> Result<PruneReport, Box<dyn std::error::Error>> {
    let rules = PruneRules {
        keep: args.keep,
        older_than: args.older_than.map(Duration::from),
        now: SystemTime::now(),
    };
    let mode = if args.dry_run { PruneMode::DryRun } else { PruneMode::Remove };
    let mut report = PruneReport::default();
    for pruned in retention::prune(home, rules, mode)? {
        match pruned.removal {
            Removal::WouldRemove | Removal::Removed => report.runs.push(pruned.run.id),
            Removal::Unreviewed => report.unreviewed.push(pruned.run.id),
            Removal::Failed(error) => report.failed.push(error.to_string()),
        }
    }
    Ok(report)
}

/// Applies the retention settings to all names; a run does so for its name when it ends.
fn by_retention(home: &Home, args: &PruneArgs) -> Result<PruneReport, Box<dyn std::error::Error>> {
    let retention = retention(home)?;
    let runs = store::list(home, Which::All)?;
    let names: BTreeSet<Option<String>> = runs.into_iter().map(|run| run.name).collect();
    let mut report = PruneReport::default();
    for name in names {
        if args.dry_run {
            let ledger = Ledger::open(home)?;
            let whole = ledger.stopped_beyond(&name, retention.runs)?;
            let parts = ledger.kept_beyond(&name, retention.sandboxes)?;
            let parts: Vec<RunId> = parts.into_iter().filter(|run| !whole.contains(run)).collect();
            let undecided = |run: &RunId| is_unreviewed(home, run);
            report.unreviewed.extend(whole.iter().chain(&parts).filter(|run| undecided(run)));
            report.sandboxes.extend(parts.into_iter().filter(|run| !undecided(run)));
            report.runs.extend(whole.into_iter().filter(|run| !undecided(run)));
        } else {
            let retained = retention::apply_retention(home, &name, retention)?;
            report.runs.extend(retained.runs);
            report.sandboxes.extend(retained.sandboxes);
            report.unreviewed.extend(retained.unreviewed);
            report.failed.extend(retained.failed.iter().map(ToString::to_string));
        }
    }
    Ok(report)
}

fn retention(home: &Home) -> Result<Retention, Box<dyn std::error::Error>> {
    let cwd = std::env::current_dir()?;
    let invocation = Invocation::new(cwd, environment(), MainCommand::None);
    Ok(spec::resolve::retention(&config::load_settings(&invocation, home)?.settings))
}
