//! `belljar backends`: tests each backend, and lists which are available.

use belljar::doctor::{BackendReport, examine_all};
use belljar::spec::BackendName;
use serde_json::json;

use super::doctor::about;
use crate::cli::BackendsArgs;
use crate::report::{self, BOLD, DIM, GOOD, WARN, folded};

const INDENT: usize = 9;
const SEE_DOCTOR: &str = "see belljar doctor";

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
    report::out(&rows.iter().map(to_text).collect::<String>());
    0
}

pub(super) fn as_data(row: &BackendReport) -> serde_json::Value {
    let backend = row.backend;
    if backend == BackendName::Host {
        // It isolates nothing, so it is always available.
        return json!({ "backend": backend, "available": true, "version": "none" });
    }
    let mut data = json!({ "backend": backend, "available": row.usable });
    if row.usable {
        data["version"] = json!(row.version.as_deref().unwrap_or_default());
        data["weaker"] = json!(weaker(row));
    } else {
        data["why"] = json!(row.why.as_deref().unwrap_or("no reason given"));
        data["fix"] = json!(row.fix.as_deref().unwrap_or(SEE_DOCTOR));
    }
    if let Some(engine) = &row.engine {
        data["engine"] = json!(engine);
    }
    data
}

/// The clauses that are only partly enforced.
fn weaker(row: &BackendReport) -> Vec<String> {
    let posture = row.posture.iter().flat_map(|posture| posture.not_enforced());
    let weaker = posture.filter(|(_, enforcement)| enforcement.status() == "weaker");
    weaker.map(|(clause, _)| clause.to_string()).collect()
}

fn to_text(row: &BackendReport) -> String {
    let name = row.backend;
    let shown = match row.backend {
        BackendName::Host => format!("{WARN}no isolation{WARN:#}; needs --backend host"),
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
            let why = row.why.as_deref().unwrap_or("no reason given");
            let fix = row.fix.as_deref().unwrap_or(SEE_DOCTOR);
            let fix = if fix.contains('\n') { SEE_DOCTOR } else { fix };
            let why = folded(&format!("not available: {why}"), INDENT);
            let fix = folded(&format!("fix: {fix}"), INDENT);
            format!("{DIM}{why}{DIM:#}\n{:INDENT$}{fix}", "")
        }
    };
    format!("{BOLD}{name:<8}{BOLD:#} {shown}\n")
}
