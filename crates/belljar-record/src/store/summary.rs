//! What listings need of `run.json`. Reads the rest over, so that records of other versions can be listed
//! and removed too.

use std::fs::File;
use std::io::{self, Read};
use std::time::UNIX_EPOCH;

use belljar_spec::wire::control::StopReport;
use belljar_spec::{BackendName, Exit, Mount, OsText, RunId, StopReason, Usage};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use crate::home::Home;
use crate::ledger::{agent_line, command_line};

/// Arguments, variables and an attestation fit many times.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) id: RunId,
    pub(crate) name: Option<String>,
    pub(crate) backend: BackendName,
    pub(crate) command: String,
    pub(crate) workspace: Option<OsText>,
    pub(crate) outcome: Option<End>,
    /// When the run stopped, where there is an outcome; otherwise the time of the file.
    pub(crate) stopped_ms: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct End {
    pub(crate) reason: StopReason,
    pub(crate) exit: Exit,
    #[serde(default)]
    pub(crate) usage: Usage,
}

impl From<StopReport> for End {
    fn from(report: StopReport) -> Self {
        Self { reason: report.reason, exit: report.exit, usage: report.usage }
    }
}

#[derive(Deserialize)]
struct Record {
    id: RunId,
    backend: BackendName,
    spec: Spec,
    #[serde(default)]
    outcome: Option<End>,
    #[serde(default)]
    stopped_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Spec {
    command: Vec<OsText>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    workspace: Option<Mount>,
    /// Whatever it is: only one line of it is read.
    #[serde(default)]
    agent: serde_json::Value,
}

impl Spec {
    fn line(&self) -> String {
        let kind = self.agent.pointer("/agent/kind").and_then(|kind| kind.as_str());
        match kind {
            Some(kind) if self.command.is_empty() => {
                let program = self.agent.pointer("/agent/program").cloned();
                let program = program.and_then(|words| serde_json::from_value(words).ok());
                agent_line(kind, &program.unwrap_or_else(Vec::new))
            }
            _ => command_line(&self.command),
        }
    }
}

impl Summary {
    pub(crate) fn read(home: &Home, id: &RunId) -> io::Result<Self> {
        let path = home.run_dir(id).join("run.json");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let metadata = file.metadata();
        let length = metadata.as_ref().map_or(0, |metadata| metadata.len()).min(MAX_BYTES);
        let written = metadata.and_then(|metadata| metadata.modified());
        let mut text = Vec::with_capacity(length as usize + 1); // room to see the end in one read
        Read::by_ref(&mut file).take(MAX_BYTES).read_to_end(&mut text)?;
        let record: Record = serde_json::from_slice(&text)?;
        if record.id != *id {
            let why = format!("the record is of run {}", record.id);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let since_epoch = written.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let written_ms = since_epoch.and_then(|time| u64::try_from(time.as_millis()).ok());
        let command = record.spec.line();
        Ok(Self {
            id: record.id,
            name: record.spec.name,
            backend: record.backend,
            command,
            workspace: record.spec.workspace.map(|mount| mount.source),
            outcome: record.outcome,
            stopped_ms: record.stopped_ms.or(written_ms),
        })
    }
}
