//! `belljar backends`: what there is, and what it needs.

use belljar::spec::BackendName;
use serde_json::json;

use crate::cli::BackendsArgs;
use crate::report::{self, BOLD, DIM, GOOD, WARN};

pub(crate) fn run(args: &BackendsArgs) -> i32 {
    let rows: Vec<_> =
        BackendName::ALL.iter().map(|name| (*name, belljar::backend_facts(*name))).collect();
    if args.json {
        let list: Vec<_> = rows
            .iter()
            .map(|(name, facts)| match facts {
                Ok(version) => json!({ "backend": name, "available": true, "version": version }),
                Err(reason) => {
                    json!({ "backend": name, "available": false, "why": reason.why, "fix": reason.fix })
                }
            })
            .collect();
        return i32::from(report::json(&list).is_err());
    }
    let mut text = String::new();
    for (name, facts) in rows {
        let shown = match (name, facts) {
            (BackendName::Host, _) => {
                format!("{WARN}no isolation{WARN:#}, only if asked for by name")
            }
            (_, Ok(version)) => format!("{GOOD}available{GOOD:#} {DIM}(kernel {version}){DIM:#}"),
            (_, Err(reason)) => format!("{DIM}not available: {}{DIM:#}", reason.why),
        };
        text.push_str(&format!("{BOLD}{name:<8}{BOLD:#} {shown}\n"));
    }
    report::out(&text);
    0
}
