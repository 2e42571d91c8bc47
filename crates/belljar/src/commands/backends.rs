//! `belljar backends`: what there is, found out by trying, and what it needs.

use belljar::doctor::{Examined, examine_all};
use belljar::spec::BackendName;
use serde_json::json;

use super::doctor::about;
use crate::cli::BackendsArgs;
use crate::report::{self, BOLD, DIM, GOOD, WARN, folded};

const INDENT: usize = 9;
const ASK_THE_DOCTOR: &str = "belljar doctor tells more";

pub(crate) fn run(args: &BackendsArgs) -> i32 {
    let belljar = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            report::error(&error, None);
            return 1;
        }
    };
    let rows = examine_all(&belljar);
    if args.json {
        let list: Vec<_> = rows.iter().map(as_data).collect();
        return i32::from(report::json(&list).is_err());
    }
    report::out(&rows.iter().map(in_words).collect::<String>());
    0
}

pub(super) fn as_data(row: &Examined) -> serde_json::Value {
    let backend = row.backend;
    if backend == BackendName::Host {
        // It isolates nothing, and works wherever there is a process.
        return json!({ "backend": backend, "available": true, "version": "none" });
    }
    let mut data = json!({ "backend": backend, "available": row.usable });
    if row.usable {
        data["version"] = json!(row.version.as_deref().unwrap_or_default());
        data["weaker"] = json!(weaker(row));
    } else {
        data["why"] = json!(row.why.as_deref().unwrap_or("it does not say why"));
        data["fix"] = json!(row.fix.as_deref().unwrap_or(ASK_THE_DOCTOR));
    }
    if let Some(engine) = &row.engine {
        data["engine"] = json!(engine);
    }
    data
}

/// Clauses that it does not hold as a whole.
fn weaker(row: &Examined) -> Vec<String> {
    let posture = row.posture.iter().flat_map(|posture| posture.not_enforced());
    let weaker = posture.filter(|(_, enforcement)| enforcement.word() == "weaker");
    weaker.map(|(clause, _)| clause.to_string()).collect()
}

fn in_words(row: &Examined) -> String {
    let name = row.backend;
    let shown = match row.backend {
        BackendName::Host => format!("{WARN}no isolation{WARN:#}, only if asked for by name"),
        _ if row.usable => {
            let kernel = || format!("kernel {}", row.version.as_deref().unwrap_or_default());
            let about = folded(&about(row).unwrap_or_else(kernel), INDENT);
            let mut shown = format!("{GOOD}available{GOOD:#}\n{:INDENT$}{DIM}{about}{DIM:#}", "");
            let weaker = weaker(row);
            if !weaker.is_empty() {
                let names = folded(&format!("weaker: {}", weaker.join(", ")), INDENT);
                shown.push_str(&format!("\n{:INDENT$}{WARN}{names}{WARN:#}", ""));
            }
            shown
        }
        _ => {
            let why = row.why.as_deref().unwrap_or("it does not say why");
            let fix = row.fix.as_deref().unwrap_or(ASK_THE_DOCTOR);
            let fix = if fix.contains('\n') { ASK_THE_DOCTOR } else { fix };
            let why = folded(&format!("not available: {why}"), INDENT);
            let fix = folded(&format!("fix: {fix}"), INDENT);
            format!("{DIM}{why}{DIM:#}\n{:INDENT$}{fix}", "")
        }
    };
    format!("{BOLD}{name:<8}{BOLD:#} {shown}\n")
}
