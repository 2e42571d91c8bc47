//! `belljar doctor`: starts a canary on each backend, and prints which clauses it enforces.

use belljar::doctor::{BackendReport, EngineInfo, examine_all};
use belljar::spec::{BackendName, Clause, Enforcement, Required};

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
    if let Some(file) = &args.bundle {
        return super::bundle::write(file, &belljar);
    }
    let examined = examine_all(&belljar);
    // Whether `--backend auto` would find one.
    let usable = examined
        .iter()
        .any(|row| row.usable && BackendName::auto().any(|name| name == row.backend));
    if args.json {
        if report::json(&examined).is_err() {
            return 1;
        }
    } else {
        report::out(&to_text(&examined));
    }
    i32::from(!usable)
}

fn to_text(examined: &[BackendReport]) -> String {
    let mut text = verdict(examined);
    // Problems first: they are what the user wants to see.
    for row in examined.iter().filter(|row| !row.usable && row.backend != BackendName::Host) {
        text.push_str(&problem(row));
    }
    for row in examined.iter().filter(|row| row.usable) {
        text.push_str(&clauses(row));
    }
    if let Some(warning) = super::background::ends_at_logout() {
        text.push_str(&format!("{WARN}⚠{WARN:#} {}\n", folded(&warning, 2)));
    }
    for login in belljar::login::statuses(&super::environment()) {
        let (mark, style) = if login.problem.is_some() { ("⚠", WARN) } else { ("✓", GOOD) };
        let shown = folded(&format!("login of {}: {}", login.agent, login.text), 2);
        text.push_str(&format!("{style}{mark}{style:#} {shown}\n"));
    }
    text.push_str(&format!(
        "{DIM}host: no isolation; needs --backend host and a waiver of every clause{DIM:#}\n"
    ));
    text
}

/// Whether `belljar run` works here, in one line.
fn verdict(examined: &[BackendReport]) -> String {
    let usable =
        |name: &BackendName| examined.iter().find(|row| row.usable && row.backend == *name);
    let Some(row) = BackendName::auto().find_map(|name| usable(&name)) else {
        return format!(
            "{BAD}Not ready:{BAD:#} no backend works here; the reasons and what to do:\n\n"
        );
    };
    let is_missing = |(clause, enforcement): &(Clause, &Enforcement)| {
        clause.required() == Required::Always && !enforcement.is_enforced()
    };
    let missing = row.posture.iter().flat_map(|posture| posture.iter()).filter(is_missing).count();
    let others: Vec<&str> = examined
        .iter()
        .filter(|other| other.usable && other.backend != row.backend)
        .map(|other| other.backend.name())
        .collect();
    let also = match others.is_empty() {
        true => String::new(),
        false => format!("; also usable: {}", others.join(", ")),
    };
    match missing {
        0 => format!("{GOOD}Ready:{GOOD:#} belljar run uses the {} backend{also}\n\n", row.backend),
        missing => format!(
            "{WARN}Ready with {missing} gaps:{WARN:#} belljar run uses the {} backend{also}\n\n",
            row.backend
        ),
    }
}

fn problem(row: &BackendReport) -> String {
    let why = row.why.as_deref().unwrap_or("no reason given");
    let name = row.backend.name();
    let shown = folded(&format!("{name}: {why}"), 2);
    let shown = shown.strip_prefix(name).unwrap_or(&shown);
    let mut text = format!("{BAD}✗{BAD:#} {BOLD}{name}{BOLD:#}{shown}\n");
    if let Some(about) = about(row) {
        text.push_str(&format!("  {DIM}{}{DIM:#}\n", folded(&about, 2)));
    }
    match &row.fix {
        // Commands to paste are not wrapped.
        Some(fix) if fix.contains('\n') => text.push_str(&format!("  fix: {fix}\n")),
        Some(fix) => text.push_str(&format!("  fix: {}\n", folded(fix, 7))),
        None => {}
    }
    text
}

/// Version and kind of an engine; `None` for the jail.
pub(super) fn about(row: &BackendReport) -> Option<String> {
    let EngineInfo { api, rootless, local, runtimes } = row.engine.as_ref()?;
    let version = row.version.as_deref().unwrap_or("of an unknown version");
    let rights = if *rootless { "rootless" } else { "rootful" };
    let place = if *local { "" } else { ", on another machine" };
    Some(format!("{version}, API {api}, {rights}{place}; runtimes: {}", runtimes.join(", ")))
}

fn clauses(row: &BackendReport) -> String {
    let mut text = format!(
        "{GOOD}✓{GOOD:#} {BOLD}{}{BOLD:#}: a canary ran and was attested in {} ms\n",
        row.backend, row.took_ms
    );
    let about = about(row);
    if let Some(about) = &about {
        text.push_str(&format!("  {}\n", folded(about, 2)));
    }
    let Some(posture) = &row.posture else { return text };
    for (clause, enforcement) in posture.iter() {
        // For an engine, only the clauses that are not enforced are listed.
        if about.is_none() || !enforcement.is_enforced() {
            text.push_str(&line(clause, enforcement));
        }
    }
    let held = posture.iter().filter(|(_, enforcement)| enforcement.is_enforced()).count();
    if about.is_some() {
        text.push_str(&format!("  {GOOD}✓{GOOD:#} the other {held} clauses are enforced\n"));
    }
    text
}

fn line(clause: Clause, enforcement: &Enforcement) -> String {
    let (mark, style) = match (enforcement.status(), clause.required()) {
        ("enforced", _) => ("✓", GOOD),
        ("weaker", _) => ("⚠", WARN),
        (_, Required::Always) => ("✗", BAD),
        _ => ("·", DIM),
    };
    let why = folded(enforcement.reason(), 23);
    let mut text = format!("  {style}{mark}{style:#} {:<18} {why}\n", clause.name());
    if let Some(fix) = enforcement.fix() {
        text.push_str(&format!("  {:<20} {DIM}fix: {}{DIM:#}\n", "", folded(fix, 28)));
    }
    text
}
