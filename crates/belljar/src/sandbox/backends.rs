//! Lists the backends that are available on this host.

use std::process::Stdio;

use belljar_spec::BackendName;
use serde::Deserialize;

use super::connector::{Supervisors, command};
use super::error::Error;

/// Why a backend is not available, and how to fix that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}; {fix}")]
pub struct Unavailable {
    pub why: String,
    pub fix: String,
}

/// A backend with its version, or why it is not available.
pub type BackendFacts = (BackendName, Result<String, Unavailable>);

/// An element of `belljar backends --json`.
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

/// Tests every backend. Runs the belljar executable, because the test starts sandboxes, which a program
/// with threads must not do in its own process.
pub async fn available_backends() -> Result<Vec<BackendFacts>, Error> {
    let executable = Supervisors::new().find()?;
    let output = command(&executable)
        .args(["backends", "--json"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .output()
        .await;
    let what = format!("ask {} for its backends", executable.display());
    let output = output.map_err(Error::io(&what))?;
    parse(&output.stdout).map_err(|error| Error::io(what)(error.into()))
}

fn parse(text: &[u8]) -> Result<Vec<BackendFacts>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_slice(text)?;
    let facts = |row: Row| match row.available {
        true => (row.backend, Ok(row.version)),
        false => (row.backend, Err(Unavailable { why: row.why, fix: row.fix })),
    };
    Ok(rows.into_iter().map(facts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_command_is_parsed() {
        let output = br#"[{"backend":"jail","available":true,"version":"6.1"},
            {"backend":"docker","available":false,"why":"none","fix":"install it"}]"#;
        let facts = parse(output).unwrap();
        assert_eq!(facts[0], (BackendName::Jail, Ok("6.1".to_owned())));
        assert_eq!(facts[1].1.as_ref().unwrap_err().to_string(), "none; install it");
        assert!(parse(b"belljar: no such command").is_err());
    }
}
