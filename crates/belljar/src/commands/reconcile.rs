//! `belljar reconcile`: closes the records of dead supervisors, and removes their leftovers.

use belljar::ledger;
use belljar::run::Reconciled;
use belljar::store::life;

use super::{CommandResult, EXIT_INCOMPLETE, exit_code, open_home};
use crate::cli::ReconcileArgs;
use crate::report::{self, WARN};

pub(crate) fn run(args: &ReconcileArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &ReconcileArgs) -> CommandResult {
    let home = open_home()?;
    life::wait_for_writers(&home); // so that the home can be removed or unmounted then
    let rebuilt = if args.rebuild_ledger { Some(ledger::rebuild(&home)?) } else { None };
    let found = belljar::run::reconcile(&home)?;
    if args.json {
        let rebuilt = rebuilt.as_ref().map(
            |rebuilt| serde_json::json!({ "added": rebuilt.added, "damaged": rebuilt.damaged }),
        );
        report::json(&serde_json::json!({
            "lost": found.lost, "finished": found.finished, "discarded": found.discarded,
            "undone": found.undone, "left": found.left, "ledger": rebuilt,
        }))?;
    } else {
        if let Some(rebuilt) = rebuilt {
            report::eprintln(&format!("{} rows were added to the ledger", rebuilt.added));
            if let Some(path) = rebuilt.damaged {
                report::eprintln(&format!(
                    "{WARN}warning:{WARN:#} the damaged ledger is at {}; the record ends that it \
                     listed are lost",
                    path.display()
                ));
            }
        }
        print(&found);
    }
    Ok(if found.left.is_empty() { 0 } else { EXIT_INCOMPLETE })
}

fn print(found: &Reconciled) {
    let each = [
        (&found.lost, "lost its supervisor; recorded as lost"),
        (&found.finished, "had ended; its record is complete now"),
        (&found.discarded, "never started; removed"),
        (&found.undone, "was being applied when apply was interrupted; nothing was applied"),
    ];
    for (runs, what) in each {
        for run in runs {
            report::eprintln(&format!("{run} {what}"));
        }
    }
    for what in &found.left {
        report::eprintln(&format!("{WARN}warning:{WARN:#} could not be removed: {what}"));
    }
    if found.is_empty() {
        report::eprintln("nothing to reconcile");
    }
}
