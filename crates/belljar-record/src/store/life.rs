//! Whether a run is alive: its supervisor holds the lock in `live/<id>`.

use std::fs::File;
use std::io::Read;

use belljar_spec::{RunId, RunState};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::home::Home;

/// Whether a run is alive, by its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its supervisor lives, and wrote this state last.
    Live(RunState),
    /// Its supervisor is gone and has not cleaned up.
    Unfinished,
    Over,
}

/// Looks at one run. Never waits.
pub fn of(home: &Home, id: &RunId) -> Life {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(home.live_path(id), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Life::Over,
        // Something is there and cannot be asked: nothing of the run may be taken away.
        Err(_) => return Life::Live(RunState::Starting),
    };
    // Shared, so that two who look do not take each other for a supervisor; given back by the close.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Life::Unfinished,
        Err(_) => Life::Live(state(file)),
    }
}

/// One word, written by the supervisor.
fn state(file: File) -> RunState {
    let mut text = String::new();
    let read = file.take(16).read_to_string(&mut text);
    match read.ok().and_then(|_| text.trim().parse().ok()) {
        // Still held: it is about to let go.
        Some(RunState::Stopped) => RunState::Stopping,
        Some(state) => state,
        None => RunState::Starting,
    }
}
