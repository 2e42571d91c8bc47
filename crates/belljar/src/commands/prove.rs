//! `belljar prove`: runs the attack catalogue against a backend of this host.

use std::io::{IsTerminal, Write};

use belljar::prove::{Arm, Case, Identity, TestBed, Verdict, catalogue, prove};
use belljar::spec::{BackendName, EXIT_NOT_STARTED, EXIT_USAGE, Hint};
use serde_json::json;

use crate::cli::ProveArgs;
use crate::report::{self, BAD, BOLD, GOOD, WARN, folded};

/// The column of the verdicts.
const INDENT: usize = 31;

pub(crate) fn run(args: &ProveArgs) -> i32 {
    let cases = match chosen(&args.cases) {
        Ok(cases) => cases,
        Err(unknown) => {
            report::eprintln(&format!("{BAD}error:{BAD:#} no case is called \"{unknown}\""));
            report::hint(Hint::ListCases);
            return EXIT_USAGE;
        }
    };
    if args.list {
        return list(&cases, args);
    }
    let testbed = match backend(args).and_then(|backend| testbed(args, backend)) {
        Ok(testbed) => testbed,
        Err(refused) => {
            report::eprintln(&format!("{BAD}error:{BAD:#} {}", refused.why));
            return refused.code;
        }
    };
    let mut verdicts = Vec::new();
    let (count, mut group) = (cases.len(), "");
    for (at, case) in cases.into_iter().enumerate() {
        let progress = Progress::show(args, at + 1, count, &case);
        let verdict = prove(&case, &testbed);
        drop(progress);
        if !args.json {
            let own = group_of(case.name);
            if own != group {
                report::out(&format!("{BOLD}{own}{BOLD:#} ({} of {count})\n", at + 1));
                group = own;
            }
            report::out(&line(&case, &verdict));
        }
        verdicts.push((case, verdict));
    }
    let code = i32::from(verdicts.iter().any(|(_, verdict)| failed(verdict)));
    if args.json {
        let list: Vec<_> = verdicts.iter().map(|(case, verdict)| object(case, verdict)).collect();
        return if report::json(&list).is_ok() { code } else { 1 };
    }
    report::out(&summary(&verdicts));
    code
}

/// The part of a case's name before the dot: what is attacked.
fn group_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(group, _)| group)
}

/// A line on a terminal that says which case runs; removed when it has.
struct Progress(bool);

impl Progress {
    fn show(args: &ProveArgs, at: usize, count: usize, case: &Case) -> Self {
        let shown = !args.json && std::io::stderr().is_terminal();
        if shown {
            let _ = write!(anstream::stderr(), "\r\x1b[K{at} of {count}: {}", case.name);
        }
        Self(shown)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0 {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
    }
}

struct Refused {
    why: String,
    code: i32,
}

fn backend(args: &ProveArgs) -> Result<Option<BackendName>, Refused> {
    let Some(name) = args.backend.as_deref().filter(|name| *name != "auto") else {
        return Ok(None);
    };
    let known = BackendName::ALL.iter().copied().find(|known| known.name() == name);
    match known {
        None => Err(Refused { why: format!("no backend is called \"{name}\""), code: EXIT_USAGE }),
        Some(BackendName::Host) => Err(Refused {
            why: "the host backend has no boundary: there is nothing to prove, and the attacks \
                  would hit this machine"
                .to_owned(),
            code: EXIT_USAGE,
        }),
        Some(known) => Ok(Some(known)),
    }
}

fn testbed(args: &ProveArgs, backend: Option<BackendName>) -> Result<TestBed, Refused> {
    let refused = |why: String| Refused { why, code: EXIT_NOT_STARTED };
    let is_engine = backend.is_some_and(|backend| backend.features().needs_image());
    if args.image.is_some() && !is_engine {
        let why = "--image is for an engine (--backend docker): the attacks on the jail use the host's programs";
        return Err(Refused { why: why.to_owned(), code: EXIT_USAGE });
    }
    if let Some(backend) = backend {
        belljar::backend_facts(backend).map_err(|reason| {
            refused(format!("the {backend} backend is not available here: {}", reason.why))
        })?;
    }
    let belljar = std::env::current_exe().map_err(|error| refused(error.to_string()))?;
    let mut arm = Arm::new(belljar, backend, Identity::Caller);
    for (flag, value) in [("--image", &args.image), ("--oci-runtime", &args.oci_runtime)] {
        arm.flags.extend(value.iter().flat_map(|value| [flag.into(), value.into()]));
    }
    let finds_engine = |name: &str| {
        ["DOCKER_", "CONTAINER", "XDG_RUNTIME_DIR"].iter().any(|head| name.starts_with(head))
    };
    arm.env =
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(finds_engine)).collect();
    // The launcher gets a home with fake secrets, fake engine settings among them. So the engine is looked
    // up here, with the user's settings.
    let found = belljar::engine_variables();
    arm.env.extend(found.into_iter().map(|(name, value)| (name.into(), value.into())));
    TestBed::new(arm).map_err(|error| refused(error.to_string()))
}

/// The named cases in the catalogue's order; all if none is named.
fn chosen(names: &[String]) -> Result<Vec<Case>, &String> {
    let all = catalogue();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|case| case.name == **name)) {
        return Err(unknown);
    }
    let wanted = |case: &Case| names.is_empty() || names.iter().any(|name| name == case.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn list(cases: &[Case], args: &ProveArgs) -> i32 {
    if args.json {
        let list: Vec<_> = cases
            .iter()
            .map(|case| {
                json!({
                    "case": case.name,
                    "attack": case.attack,
                    "clause": case.clause,
                    "severity": case.severity,
                })
            })
            .collect();
        return i32::from(report::json(&list).is_err());
    }
    let lines = cases.iter().map(|case| {
        format!("{BOLD}{:<INDENT$}{BOLD:#}{}\n", case.name, folded(case.attack, INDENT))
    });
    report::out(&lines.collect::<String>());
    0
}

/// Whether the attack succeeded, or the case itself failed.
fn failed(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Broke { .. } | Verdict::Failed { .. })
}

fn line(case: &Case, verdict: &Verdict) -> String {
    let (mark, style) = match verdict {
        Verdict::Held { .. } => ("✓", GOOD),
        Verdict::Broke { .. } => ("✗", BAD),
        Verdict::Failed { .. } => ("–", BAD),
        Verdict::NotPromised { .. } | Verdict::NotTried { .. } | Verdict::NoControl { .. } => {
            ("–", WARN)
        }
    };
    let result = match verdict {
        Verdict::Held { how } => how.clone(),
        other => format!("{}: {}", other.as_str(), other.why()),
    };
    format!(
        "{style}{mark}{style:#} {:<width$}{}\n",
        case.name,
        folded(&result, INDENT),
        width = INDENT - 2
    )
}

fn summary(verdicts: &[(Case, Verdict)]) -> String {
    let count =
        |is: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| is(verdict)).count();
    let held = count(Verdict::has_held);
    let broke = count(Verdict::has_broken);
    let others = verdicts.len() - held - broke;
    let failed = verdicts.iter().filter(|(_, verdict)| failed(verdict)).count() - broke;
    let (style, verdict) = match (broke, failed) {
        (0, 0) => (GOOD, "the boundary held".to_owned()),
        (0, failed) => (BAD, format!("not proved: {failed} of the cases failed to run")),
        (broke, _) => (BAD, format!("THE BOUNDARY BROKE in {broke} of {} cases", verdicts.len())),
    };
    let mut text = format!(
        "{style}{verdict}{style:#}: {} cases, {held} held, {broke} broke, {others} could not be shown\n",
        verdicts.len()
    );
    for (case, _) in verdicts.iter().filter(|(_, verdict)| verdict.has_broken()) {
        let line = format!("{}: {} ({})", case.name, case.attack, case.clause);
        text.push_str(&format!("  {BAD}✗{BAD:#} {}\n", folded(&line, 4)));
    }
    text
}

fn object(case: &Case, verdict: &Verdict) -> serde_json::Value {
    json!({
        "case": case.name,
        "clause": case.clause,
        "severity": case.severity,
        "attack": case.attack,
        "verdict": verdict.as_str(),
        "why": verdict.why(),
    })
}
