//! Runs as they lie in a home: directories, signs of life, rows.

#![allow(dead_code)]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use belljar_record::home::Home;
use belljar_record::ledger::{Ledger, LedgerRow, RowOrigin, SandboxKept};
use belljar_spec::{BackendName, Exit, ExitSource, RunId, RunState, StopReason, Usage};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// When the first run of a test began.
pub(crate) const BEGAN: u64 = 1_700_000_000_000;

pub(crate) struct Runs {
    _temp: TempDir,
    pub(crate) home: Home,
}

impl Runs {
    pub(crate) fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let home = Home::open_at(temp.path().join("home")).unwrap();
        Self { _temp: temp, home }
    }

    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::open(&self.home).unwrap()
    }

    /// A directory with a sandbox and a record that has its end.
    pub(crate) fn directory(&self, id: RunId, name: Option<&str>) -> PathBuf {
        self.record(id, name, Some(StopReason::Exited))
    }

    pub(crate) fn record(
        &self,
        id: RunId,
        name: Option<&str>,
        reason: Option<StopReason>,
    ) -> PathBuf {
        let directory = self.home.run_dir(&id);
        fs::create_dir_all(directory.join("home/work")).unwrap();
        fs::write(directory.join("home/work/result"), "x").unwrap();
        fs::create_dir_all(directory.join("upper")).unwrap();
        let outcome = reason.map(|reason| {
            serde_json::json!({
                "id": id, "backend": "jail", "reason": reason,
                "exit": { "code": 3, "source": "command" },
                "posture": {}, "usage": { "wall_ms": 12 },
            })
        });
        let record = serde_json::json!({
            "v": 1, "id": id, "backend": "jail",
            "spec": {
                "command": ["make", "two words"], "name": name,
                "workspace": { "source": "/srv/work", "target": "/workspace", "mode": "rw" },
            },
            "outcome": outcome,
        });
        fs::write(directory.join("run.json"), record.to_string()).unwrap();
        directory
    }

    pub(crate) fn row(&self, id: RunId, name: Option<&str>) -> LedgerRow {
        row(id, name)
    }

    /// A stopped run as it should be: directory and row.
    pub(crate) fn stopped(&self, number: u64, name: Option<&str>) -> RunId {
        let id = id(number);
        self.directory(id, name);
        self.ledger().upsert(&row(id, name)).unwrap();
        id
    }

    /// A live run; it is so until the file is dropped.
    pub(crate) fn live(&self, number: u64, name: Option<&str>, state: &str) -> (RunId, File) {
        let id = id(number);
        let held = self.sign_of_life(id, state);
        self.record(id, name, None);
        (id, held)
    }

    pub(crate) fn sign_of_life(&self, id: RunId, state: &str) -> File {
        let mut file = File::create(self.home.live_path(&id)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        write!(file, "{state}").unwrap();
        file
    }

    pub(crate) fn has_directory(&self, id: &RunId) -> bool {
        self.home.run_dir(id).exists()
    }

    pub(crate) fn has_sandbox(&self, id: &RunId) -> bool {
        self.home.run_dir(id).join("home").exists()
    }

    pub(crate) fn has_row(&self, id: &RunId) -> bool {
        self.ledger().get(id).unwrap().is_some()
    }

    pub(crate) fn trash(&self) -> Vec<PathBuf> {
        fs::read_dir(self.home.trash()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Later for a higher number; the tails differ.
pub(crate) fn id(number: u64) -> RunId {
    RunId::from_parts(BEGAN + number * 1000, number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
}

pub(crate) fn row(id: RunId, name: Option<&str>) -> LedgerRow {
    LedgerRow {
        id,
        name: name.map(str::to_owned),
        backend: BackendName::Jail,
        state: RunState::Stopped,
        command: "make 'two words'".to_owned(),
        workspace: Some("/srv/work".into()),
        created_ms: id.unix_millis(),
        stopped_ms: Some(id.unix_millis() + 500),
        reason: Some(StopReason::Exited),
        exit: Some(Exit { code: Some(3), signal: None, source: ExitSource::Command }),
        usage: Usage { wall_ms: 12, ..Usage::default() },
        sandbox: SandboxKept::Yes,
        anchor: None,
        origin: RowOrigin::Supervisor,
    }
}
