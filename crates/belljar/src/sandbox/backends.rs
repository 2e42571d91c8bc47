//! What this host can be a sandbox with.

use std::process::Stdio;

use belljar_spec::BackendName;
use serde::Deserialize;

use super::connector::{Supervisors, command};
use super::error::Error;

/// Why a backend cannot be used, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}; {fix}")]
pub struct Unavailable {
    pub why: String,
    pub fix: String,
}

/// A backend with its version, or why it cannot be used.
pub type BackendFacts = (BackendName, Result<String, Unavailable>);

/// A line of `belljar backends --json`.
#[derive(Deserialize)]
struct Row {
    backend: BackendName,
    available: bool,
    #[serde(default)]
    version: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    fix: String,
}

/// Every backend. Asks the executable, because finding out
/// means trying, which a program with threads must not do itself.
pub async fn available_backends() -> Result<Vec<BackendFacts>, Error> {
    let executable = Supervisors::new().find()?;
    let asked = command(&executable)
        .args(["backends", "--json"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .output()
        .await;
    let what = format!("ask {} for its backends", executable.display());
    let answer = asked.map_err(Error::io(&what))?;
    parse(&answer.stdout).map_err(|error| Error::io(what)(error.into()))
}

fn parse(text: &[u8]) -> Result<Vec<BackendFacts>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_slice(text)?;
    let told = |row: Row| match row.available {
        true => (row.backend, Ok(row.version)),
        false => (row.backend, Err(Unavailable { why: row.why, fix: row.fix })),
    };
    Ok(rows.into_iter().map(told).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_says_is_understood() {
        let said = br#"[{"backend":"jail","available":true,"version":"6.1"},
            {"backend":"docker","available":false,"why":"none","fix":"install it"}]"#;
        let told = parse(said).unwrap();
        assert_eq!(told[0], (BackendName::Jail, Ok("6.1".to_owned())));
        assert_eq!(told[1].1.as_ref().unwrap_err().to_string(), "none; install it");
        assert!(parse(b"belljar: no such command").is_err());
    }
}
