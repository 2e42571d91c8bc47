//! Waiting: between attempts, and no longer than allowed.

use std::future::Future;
use std::time::Duration;

const MAX_ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Attempts without progress.
#[derive(Debug)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { attempts: 0 }
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Waits before the next attempt; false if there were enough.
    pub(super) async fn wait(&mut self) -> bool {
        self.attempts += 1;
        if self.attempts >= MAX_ATTEMPTS {
            return false;
        }
        tokio::time::sleep(FIRST_WAIT * 2_u32.pow(self.attempts - 1)).await;
        true
    }
}

/// Nothing if it takes longer.
pub(super) async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, work).await.ok()
}
