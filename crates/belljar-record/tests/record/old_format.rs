//! A home that an older version wrote: its records are read, verified and listed with the present names.
//!
//! `format-2/` is such a home: an agent's run, a run that continues it, and a run whose first backend was skipped.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_record::run_json::RunRecord;
use belljar_record::{Anchor, EventReader, Home, HomeKey, LogState, Verdict, store, verify_run};
use belljar_spec::{EventKind, IterationReport, RECORD_VERSION, ResumeKind, RunId};
use serde_json::json;

use crate::record_support::Run;

const AGENT: &str = "1m7p64stx35t0ydy";
const CONTINUED: &str = "1m7p65xa2xexf68p";
const SKIPPED: &str = "1m7p65xean20mhtn";

fn old_home() -> (tempfile::TempDir, Home) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("home");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/format-2");
    copy(&from, &path);
    let home = Home::open_at(path).unwrap();
    (directory, home)
}

fn copy(from: &Path, to: &PathBuf) {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().mode(0o700).create(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn run(id: &str) -> RunId {
    id.parse().unwrap()
}

#[test]
fn the_home_is_upgraded_once() {
    let (_directory, home) = old_home();
    assert_eq!(fs::read_to_string(home.path().join("format")).unwrap(), "3\n");
    Home::open_at(home.path().to_owned()).unwrap();
}

#[test]
fn an_old_run_json_has_the_present_names() {
    let (_directory, home) = old_home();
    let read = |id: &str| RunRecord::read(&home.run_dir(&run(id))).unwrap();
    let first = read(AGENT);
    assert_eq!(first.spec.agent.as_ref().unwrap().repeat.max_iterations, Some(2));
    let outcome = first.outcome.unwrap();
    assert!(outcome.usage.memory_peak_bytes.is_some() && outcome.usage.written_bytes.is_some());
    let report = outcome.agent.unwrap();
    assert_eq!((report.run_iterations, report.totals.iterations), (2, 2));
    assert_eq!(outcome.workspace.unwrap().autorun[0].path.to_string(), "Makefile");
    let origin = read(CONTINUED).resumed_from.unwrap();
    assert_eq!(
        (origin.kind, origin.from, origin.totals.iterations),
        (ResumeKind::Resume, run(AGENT), 2)
    );
    assert!(origin.unchanged.sources.iter().all(|source| source.created.is_some()));
    let skipped = read(SKIPPED);
    assert_eq!(skipped.skipped_backends.len(), 1);
    assert_eq!(skipped.outcome.unwrap().workspace.unwrap().new_control_files.len(), 1);
}

#[test]
fn old_events_have_the_present_names_from_wherever_they_are_read() {
    let (_directory, home) = old_home();
    let directory = home.run_dir(&run(AGENT));
    let key = HomeKey::load(home.path()).unwrap();
    let mut events = EventReader::open(&directory).unwrap().checked_with(key.for_run(&run(AGENT)));
    let mut before_checkpoint = 0;
    let mut checkpoints = Vec::new();
    loop {
        let offset = events.offset();
        let Some(event) = events.next().unwrap() else { break };
        if event.kind == EventKind::Checkpoint {
            before_checkpoint = offset;
            checkpoints.push(serde_json::from_value::<IterationReport>(event.data).unwrap());
        }
    }
    assert_eq!(
        checkpoints.iter().map(|report| report.totals.iterations).collect::<Vec<_>>(),
        [1, 2]
    );
    let mut later = EventReader::open_at(&directory, before_checkpoint).unwrap();
    let event = later.next().unwrap().unwrap();
    assert_eq!(serde_json::from_value::<IterationReport>(event.data).unwrap(), checkpoints[1]);
}

#[test]
fn an_old_record_is_verified() {
    let (_directory, home) = old_home();
    let key = HomeKey::load(home.path()).unwrap();
    for id in [AGENT, CONTINUED, SKIPPED] {
        let directory = home.run_dir(&run(id));
        let anchor = last_line(&directory);
        let verify =
            || verify_run(&directory, &run(id), &key, Some(&anchor), LogState::Over).verdict;
        assert_eq!(verify(), Verdict::Sound, "{id}");
        // The control: a change of an old `run.json` is found.
        let path = directory.join("run.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("\"/workspace\"", "\"/other\"", 1)).unwrap();
        assert!(matches!(verify(), Verdict::RecordChanged { .. }), "{id}");
    }
}

/// What the ledger had of the log's end.
fn last_line(directory: &Path) -> Anchor {
    use std::os::unix::fs::MetadataExt;
    let log = directory.join("events.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let last: belljar_spec::Event = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let inode = fs::metadata(&log).unwrap().ino();
    Anchor { seq: last.seq, hash: last.hash, inode, durable: Vec::new() }
}

#[test]
fn old_runs_are_listed() {
    let (_directory, home) = old_home();
    let mut ids: Vec<_> =
        store::list(&home, store::Which::All).unwrap().into_iter().map(|info| info.id).collect();
    ids.sort();
    assert_eq!(ids, [AGENT, CONTINUED, SKIPPED].map(run));
}

#[test]
fn an_old_name_in_a_record_of_this_version_is_a_change() {
    let run = Run::new();
    let posture = json!({ "fs.mounts": { "status": "enforced", "how": "by mounts" } });
    let start = json!({ "v": RECORD_VERSION, "skipped_backends": ["docker"], "posture": posture });
    let usage = json!({ "written_bytes": 1 });
    let mut recorder = run.recorder(8);
    recorder.event(EventKind::RunStart, &start).unwrap();
    recorder.barrier().unwrap();
    recorder.stop(&json!({ "usage": usage })).unwrap();
    let mut whole = start;
    whole["outcome"] = json!({ "usage": usage, "posture": posture });
    let text = whole.to_string();
    let (head, inode) = (recorder.head(), recorder.inode().unwrap());
    let anchor = Anchor { seq: head.seq, hash: head.hash, inode, durable: Vec::new() };
    let verdict = |text: &str| {
        fs::write(run.directory().join("run.json"), text).unwrap();
        run.verdict(&anchor)
    };
    assert_eq!(verdict(&text), Verdict::Sound, "the control");
    for (new, old) in
        [("skipped_backends", "not_taken"), ("status", "is"), ("written_bytes", "written")]
    {
        let changed = text.replace(&format!("\"{new}\""), &format!("\"{old}\""));
        assert_ne!(changed, text);
        assert!(matches!(verdict(&changed), Verdict::RecordChanged { .. }), "{old}");
    }
}
