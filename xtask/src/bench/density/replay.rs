//! A real run's record, written again through the library: the same events, in the same groups, to a
//! new place on the same disk.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use belljar::home::Home;
use belljar::ledger::{AnchorRow, Ledger, LedgerRow, RowOrigin, SandboxKept};
use belljar::record::{Anchor, EventReader, HomeKey, Recorder, Secrets};
use belljar::spec::{BackendName, Event, EventKind, RunId, RunState, StopReason, Usage};

/// What a run of `/bin/true` recorded.
pub(super) struct ReplaySample {
    events: Vec<Event>,
    run_json: Vec<u8>,
}

/// How far a run got before its supervisor was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayedRecord {
    /// `run.stop` and the ledger's row are there.
    Whole,
    /// The supervisor died after the command was let go.
    UntilGo,
}

impl ReplaySample {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let mut reader = EventReader::open(directory)?;
        let mut events = Vec::new();
        while let Some(event) = reader.next()? {
            events.push(event);
        }
        let run_json = fs::read(directory.join("run.json")).context("cannot read run.json")?;
        Ok(Self { events, run_json })
    }

    /// All that a run writes of its record between its start and its end, as it does: `run.start` and
    /// the plan go to the system at once, all up to the let-go to the disk, and then the end.
    pub(super) fn write(
        &self,
        home: &Home,
        id: &RunId,
        name: &str,
        written: ReplayedRecord,
    ) -> Result<()> {
        let directory = home.run_dir(id);
        fs::create_dir_all(&directory).context("cannot make a run's directory")?;
        let key = HomeKey::load_or_make(home.path())?.for_run(id);
        let mut recorder = Recorder::create(&directory, key, Secrets::default(), 256 << 20)?;
        for event in &self.events {
            let mut data = event.data.clone();
            if let Some(own) = data.get_mut("record").and_then(|record| record.get_mut("id")) {
                *own = id.as_str().into();
            }
            match event.kind {
                EventKind::RunStop if written == ReplayedRecord::Whole => {
                    if let Some(own) = data.get_mut("run") {
                        *own = id.as_str().into();
                    }
                    recorder.stop(&data)?;
                }
                EventKind::RunStop => {}
                kind => recorder.event(kind, &data)?,
            }
            match event.kind {
                EventKind::SandboxPlanned => recorder.flush()?,
                EventKind::SandboxStarted => self.write_run_json(&directory, id)?,
                EventKind::SandboxAttested => {
                    recorder.barrier()?;
                    if written == ReplayedRecord::UntilGo {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.write_run_json(&directory, id)?;
        let row = row(id, name, recorder.anchor());
        Ledger::open(home)?.upsert(&row)?;
        Ok(())
    }

    /// Beside its place and then into it, as a run does.
    fn write_run_json(&self, directory: &Path, id: &RunId) -> Result<()> {
        let mut run: serde_json::Value =
            serde_json::from_slice(&self.run_json).context("run.json is no JSON")?;
        for place in ["/id", "/outcome/id"] {
            if let Some(own) = run.pointer_mut(place) {
                *own = id.as_str().into();
            }
        }
        let new = directory.join("run.json.new");
        let text = serde_json::to_vec_pretty(&run).context("cannot write run.json")?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, directory.join("run.json")))
            .context("cannot write run.json")
    }
}

fn row(id: &RunId, name: &str, anchor: Option<Anchor>) -> LedgerRow {
    LedgerRow {
        id: *id,
        name: Some(name.to_owned()),
        backend: BackendName::Jail,
        state: RunState::Stopped,
        command: "/bin/true".to_owned(),
        workspace: None,
        created_ms: id.unix_millis(),
        stopped_ms: Some(id.unix_millis() + 10),
        reason: Some(StopReason::Exited),
        exit: None,
        usage: Usage::default(),
        sandbox: SandboxKept::Yes,
        anchor: anchor.map(|Anchor { seq, hash, inode, durable }| AnchorRow {
            seq,
            hash,
            inode,
            durable,
        }),
        origin: RowOrigin::Supervisor,
    }
}
