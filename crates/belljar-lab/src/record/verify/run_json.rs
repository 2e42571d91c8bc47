//! Does `run.json` say what the log says? What stands in both must be the same.

use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use super::walk::Walk;
use super::{Life, Verdict};
use crate::record::file;

const NAME: &str = "run.json";
const LARGEST: u64 = 16 << 20;

/// A run of a belljar that wrote no log.
pub(super) fn is_format_1(directory: &Path) -> bool {
    matches!(read(directory), Ok(Some(run)) if run.get("v").is_some_and(|v| v == 1))
}

pub(super) fn check(directory: &Path, walk: &Walk<'_>) -> Option<Verdict> {
    let run = match read(directory) {
        Ok(Some(run)) => run,
        Ok(None) => return changed("it is no JSON"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return if walk.life == Life::Live { None } else { changed("it is not there") };
        }
        Err(error) => return Some(Verdict::unreadable(NAME, &error)),
    };
    if let Some(name) = walk.start.as_ref().and_then(|start| difference(start, &run)) {
        return changed(name);
    }
    let stop = walk.stop.as_ref()?;
    match run.get("outcome").filter(|outcome| !outcome.is_null()) {
        Some(outcome) => {
            let name = difference(stop.get("outcome").unwrap_or(stop), outcome)?;
            changed(&format!("outcome.{name}"))
        }
        // The end is written to the log first.
        None if walk.life == Life::Live => None,
        None => Some(Verdict::Restored { at: walk.seq }),
    }
}

/// The first name that both have with different values.
fn difference<'a>(logged: &'a Value, written: &Value) -> Option<&'a str> {
    let differs = |name: &str, value: &Value| written.get(name).is_some_and(|other| other != value);
    let (name, _) = logged.as_object()?.iter().find(|(name, value)| differs(name, value))?;
    Some(name)
}

fn changed(what: &str) -> Option<Verdict> {
    Some(Verdict::RecordChanged { what: what.to_owned() })
}

/// Nothing if it is no JSON.
fn read(directory: &Path) -> io::Result<Option<Value>> {
    let mut text = Vec::new();
    file::open(&directory.join(NAME))?.take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}
