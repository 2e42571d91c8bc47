//! Whether a run is alive: its supervisor holds the lock in `live/<id>`.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_spec::{RunId, RunState};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::home::Home;
use crate::index;

/// How long all looks of this process together wait for processes that write the index of a run that has stopped.
const INDEX_TIMEOUT: Duration = Duration::from_secs(10);
static WAITED_MS: AtomicU64 = AtomicU64::new(0);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// In place of a state: listings show the run's end, and the process that wrote them is about to let go.
pub const CLOSED: &str = "closed";

/// Whether a run is alive, by its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its supervisor lives, and wrote this state last.
    Live(RunState),
    /// Its supervisor is gone and has not cleaned up.
    Unfinished,
    Over,
}

/// Looks at one run. Waits only for a run that has stopped, until listings show its end: whoever started it may have
/// its exit code already. If the process that writes the index died, it is written here.
pub fn of(home: &Home, id: &RunId) -> Life {
    let begun = Instant::now();
    let before = Duration::from_millis(WAITED_MS.load(Ordering::Relaxed));
    let found = loop {
        match look(home, id) {
            Found::Life(life) => break life,
            Found::Again => {}
            Found::Writing if before + begun.elapsed() < INDEX_TIMEOUT => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Found::Writing => break Life::Live(RunState::Stopping),
        }
    };
    WAITED_MS.fetch_add(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    found
}

/// Whether it is alive now: a run that has stopped is not, whether its index is written or not. Neither waits nor writes.
pub fn is_alive(home: &Home, id: &RunId) -> Option<RunState> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(home.live_path(id), flags, Mode::empty()).ok()?);
    let text = text(&file);
    let state = text.parse().unwrap_or(RunState::Starting);
    let has_stopped = text == CLOSED || state == RunState::Stopped;
    (!has_stopped && flock(&file, FlockOperation::NonBlockingLockShared).is_err()).then_some(state)
}

enum Found {
    Life(Life),
    /// It has stopped, and another process writes its index.
    Writing,
    /// Its state changed meanwhile.
    Again,
}

fn look(home: &Home, id: &RunId) -> Found {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(home.live_path(id), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Found::Life(Life::Over),
        // Something is there and cannot be asked: nothing of the run may be taken away.
        Err(_) => return Found::Life(Life::Live(RunState::Starting)),
    };
    let seen = text(&file);
    if seen == CLOSED {
        return Found::Life(Life::Over);
    }
    let state = seen.parse().unwrap_or(RunState::Starting);
    if state == RunState::Stopped {
        return match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Found::Life(finish(home, id, &file)),
            Err(_) => Found::Writing,
        };
    }
    // Shared, so that two who look do not take each other for a supervisor; given back by the close.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(_) => Found::Life(Life::Live(state)),
        Ok(()) if is_removed(&file) => Found::Life(Life::Over),
        Ok(()) if text(&file) != seen => Found::Again,
        Ok(()) => Found::Life(Life::Unfinished),
    }
}

fn is_removed(entry: &File) -> bool {
    entry.metadata().is_ok_and(|found| found.nlink() == 0)
}

/// Whoever should have written the index is gone: it is finished, or died before.
fn finish(home: &Home, id: &RunId, locked: &File) -> Life {
    if is_removed(locked) {
        return Life::Over;
    }
    if index::write_from_log(home, id).is_err() {
        return Life::Unfinished; // tried again by a later command, which can say why: `belljar reconcile`
    }
    // What cannot be removed is found again.
    let _ = std::fs::remove_file(home.live_path(id));
    Life::Over
}

/// Waits, for as long as a look does, until no process in the background works for a run that has stopped.
pub fn wait_for_writers(home: &Home) {
    let until = Instant::now() + INDEX_TIMEOUT;
    let is_at_work = |path: &std::path::Path| {
        File::open(path).is_ok_and(|entry| {
            let text = text(&entry);
            text == CLOSED || text.parse() == Ok(RunState::Stopped)
        }) && is_held(path)
    };
    let entries = || std::fs::read_dir(home.live()).into_iter().flatten().flatten();
    while entries().any(|entry| is_at_work(&entry.path())) && Instant::now() < until {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Whether the run of that open entry was closed, and only its entry was not removed.
pub fn is_closed(entry: &File) -> bool {
    text(entry) == CLOSED
}

/// Whether a process holds the lock of that entry: a look that neither waits nor writes.
pub fn is_held(path: &std::path::Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
        Err(Errno::NOENT) => true, // it has just ended
        Err(_) => false,
    }
}

/// One word, written by the supervisor.
fn text(file: &File) -> String {
    let mut text = [0; 16];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..read]).trim().to_owned()
}
