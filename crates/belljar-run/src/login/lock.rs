//! The lock that every run of a user takes before it refreshes a login.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::LoginError;

/// Longer than another run needs for its request.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Held until it is dropped; the kernel releases it when its process dies.
#[derive(Debug)]
pub(super) struct LoginLock(#[allow(dead_code, reason = "closing it lets go")] OwnedFd);

impl LoginLock {
    pub(super) fn take(path: &Path, cancel: &AtomicBool) -> Result<Self, LoginError> {
        let failed = |why: String| LoginError::Lock { path: path.to_owned(), why };
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| failed(error.to_string()))?;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from_raw_mode(0o600))
            .map_err(|error| failed(error.to_string()))?;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(LoginError::Interrupted);
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let seconds = LOCK_TIMEOUT.as_secs();
                    return Err(failed(format!("another run held it for {seconds} s")));
                }
                Err(error) => return Err(failed(error.to_string())),
            }
        }
    }
}
