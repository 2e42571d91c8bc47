//! How often the loop turns while output flows.

use std::time::Duration;

use super::outlet::CHUNK;

/// A command that writes without pause, in small pieces, would wake this loop for each of them. After a
/// few such turns a moment is waited, in which its pipe fills.
#[derive(Debug, Default)]
pub(super) struct Pace {
    turns: u32,
}

impl Pace {
    const MOMENT: Duration = Duration::from_micros(50);
    const TURNS: u32 = 8;
    /// More than this at once is worth a turn.
    const ENOUGH: usize = CHUNK / 4;

    pub(super) fn next(&mut self, said: usize) -> Option<Duration> {
        self.turns = match said {
            0 => 0,
            _ => self.turns.saturating_add(1),
        };
        (self.turns > Self::TURNS && said < Self::ENOUGH).then_some(Self::MOMENT)
    }
}
