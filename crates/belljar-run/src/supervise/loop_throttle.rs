//! Slows the loop down while a command writes many small pieces.

use std::time::Duration;

use super::outlet::CHUNK;

/// A command that writes without pause, in small pieces, would wake the loop for each of them. After a few such turns
/// the loop pauses, so that the pipe fills.
#[derive(Debug, Default)]
pub(super) struct LoopThrottle {
    turns: u32,
}

impl LoopThrottle {
    const PAUSE: Duration = Duration::from_micros(50);
    const TURNS: u32 = 8;
    /// More than this at once is worth a turn.
    const ENOUGH: usize = CHUNK / 4;

    pub(super) fn next(&mut self, moved: usize) -> Option<Duration> {
        self.turns = match moved {
            0 => 0,
            _ => self.turns.saturating_add(1),
        };
        (self.turns > Self::TURNS && moved < Self::ENOUGH).then_some(Self::PAUSE)
    }
}
