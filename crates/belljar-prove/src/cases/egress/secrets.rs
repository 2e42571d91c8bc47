//! A secret that must be nowhere but in requests to its own host.

use std::path::{Path, PathBuf};

use belljar_spec::Clause;
use belljar_spec::egress::TRUST_DIRECTORY;

use super::trial::{Tried, allowed, ok_at, short, spell, unfit};
use crate::case::{Case, Severity, Verdict};
use crate::dialogue::{Dialogue, Step, get, tls};
use crate::stage::{Run, Stage, StageError};
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
pub(super) fn canary(stage: &Stage) -> Result<String, StageError> {
    Ok(format!("canary-{}", stage.word()?))
}

pub(super) fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// A run whose secret is the canary; its value comes from a variable of the launcher's.
pub(super) fn with_secret(stage: &Stage, run: Run, canary: &str) -> Result<Run, StageError> {
    let authority = stage.world()?.authority();
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
    let inside = |path: &str| [tls("keeper.example"), get("keeper.example", path), Step::Answer];
    vec![
        allowed(),
        Dialogue::tunnel("keeper.example:443", inside("/")).called(ASKED),
        // In an error's page, and in a redirect.
        Dialogue::tunnel("keeper.example:443", inside("/files/none")).called("an error"),
    ]
}

fn anywhere(stage: &Stage) -> Result<Verdict, StageError> {
    let (canary, place) = (canary(stage)?, stage.place()?);
    let places = ["/home", "/tmp", "/run", "/etc", "/var", "/dev/shm", TRUST_DIRECTORY];
    let run = Run::in_world(stage, "hunt").arg(backwards(&canary)).arg(spell(&dialogues())?);
    let run = with_secret(stage, run.args(places), &canary)?
        .flag("--allow-host")
        .flag("keeper.example")
        .flag("--secret")
        .flag(SECRET)
        .flag("--result")
        .flag(place.join("result.json"));
    let inside = super::trial::of_run(stage, &run)?;
    if let Some(verdict) = unfit(&inside) {
        return Ok(verdict);
    }
    if let Some(verdict) = not_put_in(&inside, &canary) {
        return Ok(verdict);
    }
    let found = inside.told.tries.iter().find(|tried| tried.what.starts_with("found in "));
    if let Some(found) = found {
        return Ok(Verdict::broke(found.what.clone()));
    }
    let home = stage.belljar_home();
    for tree in [&home, &stage.user_home(), &place] {
        if let Some(path) = files_with(tree, &canary).first() {
            return Ok(Verdict::broke(format!("it is in {}", path.display())));
        }
    }
    // The same hunt finds it where it is.
    let held = stage.place()?;
    stage.file(&held.join("held"), &canary)?;
    let held = held.display().to_string();
    let words = ["hunt", &backwards(&canary), "[]", &held];
    let control = stage.in_world(words)?.told()?;
    if control.tries.is_empty() || files_with(Path::new(&held), &canary).is_empty() {
        return Ok(Verdict::no_control("it is not found where it is either"));
    }
    let looked_at = inside.told.number("looked at");
    Ok(Verdict::held(format!("the server got it; not in {looked_at} files, no answer, no record")))
}

/// A secret that nobody got proves nothing.
fn not_put_in(inside: &Tried, canary: &str) -> Option<Verdict> {
    let heard = inside.heard(ASKED);
    if !heard.contains(ECHO) {
        return Some(Verdict::Failed {
            why: format!("the keeper did not answer: {}", short(heard)),
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
