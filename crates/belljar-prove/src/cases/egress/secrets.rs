//! Looks for a secret anywhere but in requests to its host.

use std::path::{Path, PathBuf};

use belljar_spec::Clause;
use belljar_spec::egress::TRUST_DIRECTORY;

use super::trial::{DialogueResults, allowed, ok_at, short, spell, unfit};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, tls};
use crate::testbed::{Run, TestBed, TestBedError};
use crate::world::names::KEEPER;
use crate::world::pages::ECHO;

pub(super) const CASES: &[Case] = &[Case {
    name: "env.secret-anywhere",
    attack: "find a secret of the proxy's: in /proc, in files, in what servers send back, in the record",
    clause: Clause::EnvClean,
    severity: Severity::Critical,
    run: anywhere,
}];

/// Made of the stage's own name, so that nothing of another test is found.
pub(super) fn canary(testbed: &TestBed) -> Result<String, TestBedError> {
    Ok(format!("canary-{}", testbed.unique_name()?))
}

pub(super) fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// A run with the canary as its secret, from a variable of the launcher.
pub(super) fn with_secret(testbed: &TestBed, run: Run, canary: &str) -> Result<Run, TestBedError> {
    let authority = testbed.world()?.authority();
    Ok(run
        .launcher_env("WORLD_KEY", canary)
        .launcher_env("SSL_CERT_FILE", authority)
        .flag("--allow-host")
        .flag("ok.example"))
}

/// What the variable inside is for.
pub(super) const SECRET: &str = "env=WORLD_KEY,host=keeper.example,header=x-api-key";
const ASKED: &str = "the keeper";

fn dialogues() -> Vec<Dialogue> {
    let inside =
        |path: &str| [tls("keeper.example"), get("keeper.example", path), Step::AttemptResult];
    vec![
        allowed(),
        Dialogue::tunnel("keeper.example:443", inside("/")).called(ASKED),
        // In an error's page, and in a redirect.
        Dialogue::tunnel("keeper.example:443", inside("/files/none")).called("an error"),
    ]
}

fn anywhere(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (canary, place) = (canary(testbed)?, testbed.place()?);
    let places = ["/home", "/tmp", "/run", "/etc", "/var", "/dev/shm", TRUST_DIRECTORY];
    let run = Run::in_world(testbed, "hunt").arg(backwards(&canary)).arg(spell(&dialogues())?);
    let run = with_secret(testbed, run.args(places), &canary)?
        .flag("--allow-host")
        .flag("keeper.example")
        .flag("--secret")
        .flag(SECRET)
        .flag("--result")
        .flag(place.join("result.json"));
    let inside = super::trial::of_run(testbed, &run)?;
    if let Some(verdict) = unfit(&inside) {
        return Ok(verdict);
    }
    if let Some(verdict) = not_put_in(&inside, &canary) {
        return Ok(verdict);
    }
    let found = inside.report.tries.iter().find(|tried| tried.what.starts_with("found in "));
    if let Some(found) = found {
        return Ok(Verdict::broke(found.what.clone()));
    }
    let home = testbed.belljar_home();
    for tree in [&home, &testbed.user_home(), &place] {
        if let Some(path) = files_with(tree, &canary).first() {
            return Ok(Verdict::broke(format!("it is in {}", path.display())));
        }
    }
    // The same hunt finds it where it is.
    let held = testbed.place()?;
    testbed.file(&held.join("held"), &canary)?;
    let held = held.display().to_string();
    let argv = ["hunt", &backwards(&canary), "[]", &held];
    let control = testbed.in_world(argv)?.report()?;
    if control.tries.is_empty() || files_with(Path::new(&held), &canary).is_empty() {
        return Ok(Verdict::no_control("it is not found where it is either"));
    }
    let looked_at = inside.report.number("looked at");
    Ok(Verdict::held(format!("the server got it; not in {looked_at} files, no answer, no record")))
}

/// A secret that no server received proves nothing.
fn not_put_in(inside: &DialogueResults, canary: &str) -> Option<Verdict> {
    let probe_report = inside.probe_report(ASKED);
    if !probe_report.contains(ECHO) {
        return Some(Verdict::Failed {
            why: format!("the keeper did not answer: {}", short(probe_report)),
        });
    }
    let at = format!("{KEEPER}:443");
    let got = inside.seen.requests.iter().any(|one| one.at == at && one.head.contains(canary));
    (!got).then(|| Verdict::Failed { why: "the server did not get the secret".to_owned() }).or_else(
        || {
            let beyond = inside.seen.beyond(&[&ok_at(80), &at]);
            beyond.first().map(|at| Verdict::broke(format!("{at} was reached")))
        },
    )
}

/// Files that hold the text. What a run wrote into its own home is searched from inside.
pub(super) fn files_with(tree: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![tree.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(kind) = path.symlink_metadata() else { continue };
        if kind.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path);
            }
        }
    }
    found
}
