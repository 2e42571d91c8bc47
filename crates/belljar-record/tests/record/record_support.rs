//! A small run's record, and ways to damage it.

// Every test file takes what it needs.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_record::{
    Anchor, EVENTS, HomeKey, LogState, Recorder, Report, RunKey, Secrets, Verdict, verify_run,
};
use belljar_spec::{EventKind, OutputStream, RunId};
use serde_json::json;
use tempfile::TempDir;

pub(crate) struct Run {
    temp: TempDir,
    pub(crate) home: HomeKey,
    pub(crate) id: RunId,
}

impl Run {
    /// A home and an empty run directory.
    pub(crate) fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let home = HomeKey::load_or_make(temp.path()).unwrap();
        fs::create_dir(temp.path().join("run")).unwrap();
        Self { temp, home, id: RunId::from_parts(1_700_000_000_000, 77) }
    }

    pub(crate) fn home_path(&self) -> &Path {
        self.temp.path()
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.temp.path().join("run")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.directory().join(EVENTS)
    }

    pub(crate) fn key(&self) -> RunKey {
        self.home.for_run(&self.id)
    }

    pub(crate) fn recorder(&self, limit: u64) -> Recorder {
        self.recorder_hiding(limit, Secrets::default())
    }

    pub(crate) fn recorder_hiding(&self, limit: u64, secrets: Secrets) -> Recorder {
        Recorder::create(&self.directory(), self.key(), secrets, limit).unwrap()
    }

    /// Complete, with output of two commands; stdout of the first is longer than is kept.
    pub(crate) fn recorded() -> (Self, Anchor) {
        let run = Self::new();
        let mut recorder = run.recorder(40);
        let now = Instant::now();
        recorder.event(EventKind::RunStart, &json!({"v": 2, "spec_hash": "abc"})).unwrap();
        recorder.barrier().unwrap();
        let durable = vec![(recorder.head().seq, recorder.head().hash)];
        recorder.event(EventKind::SandboxStarted, &json!({})).unwrap();
        for part in 0..5_u8 {
            recorder.output(0, OutputStream::Stdout, &[b'a' + part; 13], now).unwrap();
            recorder.tick(now + std::time::Duration::from_secs(1)).unwrap();
        }
        recorder.output(0, OutputStream::Stderr, b"oh no", now).unwrap();
        recorder.output(3, OutputStream::Stdout, b"third", now).unwrap();
        recorder.end_exec(3).unwrap();
        recorder.end_exec(0).unwrap();
        recorder.event(EventKind::ExecExit, &json!({"exec": 0, "code": 0})).unwrap();
        recorder.stop(&json!({"reason": "exited", "exit": {"code": 0}})).unwrap();
        let head = recorder.head();
        let inode = fs::metadata(run.log_path()).unwrap().ino();
        assert_eq!(recorder.inode().unwrap(), inode);
        run.write_run_json(&json!({
            "v": 2, "spec_hash": "abc", "outcome": {"reason": "exited", "exit": {"code": 0}},
        }));
        let anchor = Anchor { seq: head.seq, hash: head.hash, inode, durable };
        (run, anchor)
    }

    /// As small as one with a loss in its output can be.
    pub(crate) fn recorded_small() -> (Self, Anchor) {
        let run = Self::new();
        let mut recorder = run.recorder(8);
        let now = Instant::now();
        recorder.event(EventKind::RunStart, &json!({})).unwrap();
        recorder.barrier().unwrap();
        let durable = vec![(recorder.head().seq, recorder.head().hash)];
        recorder.output(0, OutputStream::Stdout, b"0123456789", now).unwrap();
        recorder.stop(&json!({})).unwrap();
        run.write_run_json(&json!({"outcome": {}}));
        let (head, inode) = (recorder.head(), recorder.inode().unwrap());
        (run, Anchor { seq: head.seq, hash: head.hash, inode, durable })
    }

    pub(crate) fn write_run_json(&self, content: &serde_json::Value) {
        fs::write(self.directory().join("run.json"), content.to_string()).unwrap();
    }

    pub(crate) fn verify(&self, anchor: Option<&Anchor>, life: LogState) -> Report {
        verify_run(&self.directory(), &self.id, &self.home, anchor, life)
    }

    /// The verdict on a run that is over.
    pub(crate) fn verdict(&self, anchor: &Anchor) -> Verdict {
        self.verify(Some(anchor), LogState::Over).verdict
    }

    /// The log's lines, each with its newline.
    pub(crate) fn lines(&self) -> Vec<Vec<u8>> {
        let text = fs::read(self.log_path()).unwrap();
        text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    /// In place: the file stays the same one.
    pub(crate) fn write_lines(&self, lines: &[Vec<u8>]) {
        fs::write(self.log_path(), lines.concat()).unwrap();
    }
}
