//! A disk that is full: nothing goes on unrecorded, and the end of the run still fits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use belljar_record::{
    EventLog, HomeKey, LogState, Recorder, Secrets, Stopped, Verdict, verify_run,
};
use belljar_spec::{EventKind, OutputStream, RunId};
use serde_json::json;

const PLACE: &str = "BELLJAR_TEST_SMALL_DISK";
const ON_SMALL_DISK: &str = "run by a_full_disk, on a disk of its own";

/// Each part runs in a mount namespace of its own, on a tmpfs of 512 KiB: as root, and as a user.
#[test]
fn a_full_disk() {
    for part in
        ["the_log_fills_it", "output_fills_it", "something_else_fills_it", "a_lost_run_on_it"]
    {
        let temp = tempfile::TempDir::new().unwrap();
        let mut unshare = Command::new("unshare");
        unshare.arg("--mount");
        if !rustix::process::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        let script =
            "mount -t tmpfs -o size=512k tmpfs \"$1\" && exec \"$2\" --ignored --exact \"$3\"";
        let done = unshare
            .args(["sh", "-c", script, "sh"])
            .arg(temp.path())
            .arg(std::env::current_exe().unwrap())
            .arg(format!("full_disk::{part}"))
            .env(PLACE, temp.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{part}: {said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(said.contains("1 passed"), "{part} did not run: {said}");
    }
}

struct Disk {
    place: PathBuf,
    home: HomeKey,
    id: RunId,
}

impl Disk {
    fn new() -> Self {
        let place = PathBuf::from(std::env::var_os(PLACE).expect(ON_SMALL_DISK));
        let home = HomeKey::load_or_make(&place).unwrap();
        Self { place, home, id: RunId::from_parts(1, 2) }
    }

    fn recorder(&self) -> Recorder {
        let key = self.home.for_run(&self.id);
        let mut recorder = Recorder::create(&self.place, key, Secrets::default(), 1 << 30).unwrap();
        recorder.event(EventKind::RunStart, &json!({})).unwrap();
        recorder.barrier().unwrap();
        recorder
    }

    /// The last byte of it.
    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.place.join("filler")).unwrap();
        while file.write(&[1; 4096]).is_ok() {}
        assert!(fs::write(self.place.join("more"), [1; 4096]).is_err());
    }

    fn verdict(&self) -> Verdict {
        verify_run(&self.place, &self.id, &self.home, None, LogState::Over).verdict
    }

    fn found(&self) -> (u64, bool, u64) {
        let key = self.home.for_run(&self.id);
        let (_, found) = EventLog::reopen(&self.place, key).unwrap();
        (found.events, found.has_stop, found.cut_bytes)
    }
}

/// Run.json has no room: what the log says alone is judged.
fn is_whole(verdict: &Verdict) -> bool {
    *verdict == Verdict::RecordChanged { what: "it is not there".into() }
}

fn stop(recorder: &mut Recorder) -> Stopped {
    recorder.stop(&json!({"reason": "error", "why": "x".repeat(4000)})).unwrap()
}

#[test]
#[ignore = "run by a_full_disk, on a disk of its own"]
fn the_log_fills_it() {
    let disk = Disk::new();
    let mut recorder = disk.recorder();
    let data = json!({"x": "y".repeat(3000)});
    let mut appended = 1;
    let failed = loop {
        match recorder.event(EventKind::Checkpoint, &data) {
            Ok(()) => appended += 1,
            Err(error) => break error,
        }
        assert!(appended < 1000, "it never filled up");
    };
    assert!(failed.is_no_space(), "{failed}");
    disk.fill();
    let again = recorder.event(EventKind::Checkpoint, &data).unwrap_err();
    assert_eq!(again.to_string(), failed.to_string(), "it stays failed");
    let Stopped::Incomplete { why } = stop(&mut recorder) else { panic!("events are missing") };
    assert_eq!(why.to_string(), failed.to_string());
    assert_eq!(disk.found(), (recorder.head().seq, true, 0));
    assert!(recorder.head().seq > 100, "what was written before stays");
    assert!(is_whole(&disk.verdict()), "{}", disk.verdict());
}

#[test]
#[ignore = "run by a_full_disk, on a disk of its own"]
fn output_fills_it() {
    let disk = Disk::new();
    let mut recorder = disk.recorder();
    let now = Instant::now();
    let mut written = 0;
    let failed = loop {
        match recorder.output(0, OutputStream::Stdout, &[b'x'; 10_000], now) {
            Ok(()) => written += 10_000,
            Err(error) => break error,
        }
        assert!(written < 1 << 20, "it never filled up");
    };
    assert!(failed.is_no_space() && failed.to_string().contains("stdout.bin"), "{failed}");
    assert!(recorder.output(0, OutputStream::Stdout, b"x", now).is_err(), "no gap is hidden");
    assert!(matches!(stop(&mut recorder), Stopped::Incomplete { .. }));
    // run.start, an event for what was stored, run.stop
    assert_eq!(disk.found(), (3, true, 0));
    assert!(is_whole(&disk.verdict()), "{}", disk.verdict());
    let stored = fs::metadata(disk.place.join("stdout.bin")).unwrap().len();
    assert!(stored >= written, "{stored}");
}

#[test]
#[ignore = "run by a_full_disk, on a disk of its own"]
fn something_else_fills_it() {
    let disk = Disk::new();
    let mut recorder = disk.recorder();
    disk.fill();
    for number in 0..20 {
        recorder.event(EventKind::Checkpoint, &json!({"number": number})).unwrap();
    }
    recorder.barrier().unwrap(); // fits into what was kept
    assert!(matches!(stop(&mut recorder), Stopped::Whole));
    assert_eq!(disk.found(), (22, true, 0));
    assert!(is_whole(&disk.verdict()), "{}", disk.verdict());
}

#[test]
#[ignore = "run by a_full_disk, on a disk of its own"]
fn a_lost_run_on_it() {
    for torn in [Path::new(""), Path::new("torn")] {
        let disk = Disk::new();
        std::mem::forget(disk.recorder()); // as if killed
        disk.fill();
        let log = disk.place.join(belljar_record::EVENTS);
        if torn.as_os_str() == "torn" {
            let mut text = fs::read(&log).unwrap();
            text.extend_from_slice(b"{\"seq\":2,");
            use std::io::Write;
            let mut file = fs::OpenOptions::new().write(true).open(&log).unwrap();
            file.write_all(&text).unwrap();
        }
        let key = disk.home.for_run(&disk.id);
        let (mut log, found) = EventLog::reopen(&disk.place, key).unwrap();
        assert_eq!((found.events, found.cut_bytes > 0), (1, torn.as_os_str() == "torn"));
        log.append(EventKind::RunStop, &json!({"reason": "lost"})).unwrap();
        log.sync().unwrap();
        assert_eq!(disk.found(), (2, true, 0));
        for name in ["events.jsonl", "filler", "more"] {
            let _ = fs::remove_file(disk.place.join(name));
        }
    }
}
