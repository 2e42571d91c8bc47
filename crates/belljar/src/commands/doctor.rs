//! `belljar doctor`: clauses by backends, found out by starting a canary in each.

use belljar::doctor::{Examined, examine};
use belljar::spec::{BackendName, Clause, Required};

use crate::cli::DoctorArgs;
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN, folded};

pub(crate) fn run(args: &DoctorArgs) -> i32 {
    let belljar = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            report::error(&error, None);
            return 1;
        }
    };
    let examined: Vec<Examined> =
        BackendName::ALL.iter().map(|backend| examine(&belljar, *backend)).collect();
    let usable = examined.iter().any(|row| row.usable && row.backend == BackendName::Jail);
    if args.json {
        if report::json(&examined).is_err() {
            return 1;
        }
    } else {
        report::out(&in_words(&examined));
    }
    i32::from(!usable)
}

fn in_words(examined: &[Examined]) -> String {
    let mut text = String::new();
    // Problems first: that is what the reader came for.
    for row in examined.iter().filter(|row| !row.usable && row.backend != BackendName::Host) {
        let why = row.why.as_deref().unwrap_or("it does not say why");
        text.push_str(&format!("{BAD}✗{BAD:#} {BOLD}{}{BOLD:#}: {why}\n", row.backend));
        if let Some(fix) = &row.fix {
            text.push_str(&format!("  fix: {fix}\n"));
        }
    }
    for row in examined.iter().filter(|row| row.usable) {
        text.push_str(&clauses(row));
    }
    if let Some(warning) = super::background::ends_at_logout() {
        text.push_str(&format!("{WARN}⚠{WARN:#} {}\n", folded(&warning, 2)));
    }
    text.push_str(&format!(
        "{DIM}host: no isolation; only with --backend host and every clause waived{DIM:#}\n"
    ));
    text
}

fn clauses(row: &Examined) -> String {
    let mut text = format!(
        "{GOOD}✓{GOOD:#} {BOLD}{}{BOLD:#}: a canary ran and was attested in {} ms\n",
        row.backend, row.took_ms
    );
    let Some(posture) = &row.posture else { return text };
    for (clause, enforcement) in posture.iter() {
        let (mark, style) = match (enforcement.word(), clause.required()) {
            ("enforced", _) => ("✓", GOOD),
            ("weaker", _) => ("⚠", WARN),
            (_, Required::Always) => ("✗", BAD),
            _ => ("·", DIM),
        };
        text.push_str(&format!(
            "  {style}{mark}{style:#} {:<18} {}\n",
            clause.name(),
            folded(enforcement.reason(), 23)
        ));
        if let Some(fix) = enforcement.fix().filter(|_| clause != Clause::KernelSeparate) {
            text.push_str(&format!("  {:<20} {DIM}fix: {}{DIM:#}\n", "", folded(fix, 28)));
        }
    }
    text
}
