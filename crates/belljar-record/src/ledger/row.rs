//! A row of the ledger: one run.

use belljar_spec::{BackendName, Exit, OsText, RunId, RunSpec, RunState, StopReason, Usage};
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// More of a command than this is in `run.json` only.
const MAX_COMMAND: usize = 200;

/// Whether the run's `home/` is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxKept {
    #[serde(rename = "kept")]
    Yes,
    #[serde(rename = "removed")]
    No,
}

/// Who wrote the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOrigin {
    /// The run's own supervisor.
    Supervisor,
    /// Reconcile, for a run whose supervisor was gone.
    Reconcile,
    /// Read back from the run's directory.
    Rebuilt,
}

/// Where the run's event log ended, so that a cut tail is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorRow {
    pub seq: u64,
    pub hash: String,
    /// Of the log's file.
    pub inode: u64,
    /// Sequence number and hash at each point that was known to be on disk.
    pub durable: Vec<(u64, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    pub id: RunId,
    pub name: Option<String>,
    pub backend: BackendName,
    pub state: RunState,
    /// As [`command_line`] makes it.
    pub command: String,
    pub workspace: Option<OsText>,
    pub created_ms: u64,
    pub stopped_ms: Option<u64>,
    pub reason: Option<StopReason>,
    pub exit: Option<Exit>,
    pub usage: Usage,
    pub sandbox: SandboxKept,
    pub anchor: Option<AnchorRow>,
    pub origin: RowOrigin,
}

/// A command as listings show it: quoted, escaped, at most 200 characters.
pub fn command_line(command: &[OsText]) -> String {
    // Words that cannot show are not even quoted: a command can be megabytes long.
    let shown = belljar_spec::text::quote_command(&command[..command.len().min(MAX_COMMAND)]);
    if shown.chars().nth(MAX_COMMAND).is_none() {
        return shown;
    }
    let kept: String = shown.chars().take(MAX_COMMAND - 1).collect();
    format!("{kept}…")
}

/// The same for a run without a command: `agent claude`, or the program of one that has no name.
pub fn agent_line(kind: &str, program: &[OsText]) -> String {
    match kind {
        "command" => format!("agent {}", command_line(program)),
        kind => format!("agent {}", belljar_spec::text::escape(kind.as_bytes())),
    }
}

/// What a run does, in one line.
pub(crate) fn work_line(spec: &RunSpec) -> String {
    match &spec.agent {
        Some(work) if spec.command.is_empty() => {
            agent_line(work.agent.kind.name(), &work.agent.program)
        }
        _ => command_line(&spec.command),
    }
}

pub(super) const COLUMNS: &str = "id, name, backend, state, command, workspace, created_ms, \
     stopped_ms, reason, exit, usage, sandbox, anchor, origin";

/// What happens to a row that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfThere {
    Replace,
    Keep,
}

/// How many rows were written.
pub(super) fn write(
    connection: &Connection,
    row: &LedgerRow,
    if_there: IfThere,
) -> rusqlite::Result<usize> {
    let verb = match if_there {
        IfThere::Replace => "REPLACE",
        IfThere::Keep => "IGNORE",
    };
    let sql = format!(
        "INSERT OR {verb} INTO runs ({COLUMNS}) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
    );
    connection.execute(
        &sql,
        params![
            row.id.as_str(),
            row.name,
            row.backend.name(),
            row.state.name(),
            row.command,
            row.workspace.as_ref().map(OsText::as_bytes),
            stored(row.created_ms),
            row.stopped_ms.map(stored),
            row.reason.map(StopReason::name),
            row.exit.as_ref().map(json).transpose()?,
            json(&row.usage)?,
            row.sandbox == SandboxKept::Yes,
            row.anchor.as_ref().map(json).transpose()?,
            json(&row.origin)?,
        ],
    )
}

/// SQLite's numbers have a sign.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(column: usize, stored: i64) -> rusqlite::Result<u64> {
    u64::try_from(stored).map_err(|error| bad(column, error))
}

fn json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// In the order of [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<LedgerRow> {
    Ok(LedgerRow {
        id: id(row)?,
        name: row.get(1)?,
        backend: parsed(2, &row.get::<_, String>(2)?)?,
        state: row.get::<_, String>(3)?.parse().map_err(|()| bad(3, "no state"))?,
        command: row.get(4)?,
        workspace: row.get::<_, Option<Vec<u8>>>(5)?.map(OsText::from_bytes),
        created_ms: number(6, row.get(6)?)?,
        stopped_ms: row.get::<_, Option<i64>>(7)?.map(|value| number(7, value)).transpose()?,
        reason: word(row, 8)?,
        exit: optional(row, 9)?,
        usage: from_json(10, &row.get::<_, String>(10)?)?,
        sandbox: match row.get(11)? {
            0 => SandboxKept::No,
            1 => SandboxKept::Yes,
            _ => return Err(bad(11, "neither 0 nor 1")),
        },
        anchor: optional(row, 12)?,
        origin: from_json(13, &row.get::<_, String>(13)?)?,
    })
}

/// In the first column.
pub(super) fn id(row: &Row<'_>) -> rusqlite::Result<RunId> {
    let text: String = row.get(0)?;
    text.parse().map_err(|error| bad(0, error))
}

fn parsed<T: std::str::FromStr<Err = String>>(column: usize, text: &str) -> rusqlite::Result<T> {
    text.parse().map_err(|error: String| bad(column, error))
}

fn from_json<T: DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| bad(column, error))
}

fn optional<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| from_json(column, &text)).transpose()
}

/// A value that is stored as its bare name.
fn word<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    let value = text.map(|text| serde_json::from_value(serde_json::Value::String(text)));
    value.transpose().map_err(|error| bad(column, error))
}

fn bad(
    column: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}
