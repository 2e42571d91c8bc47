//! Reads the clock that the kernel stamps inodes with.
//!
//! Most stamps are of the last tick, so they lag by some milliseconds; a kernel with finer stamps uses them only for
//! inodes that were queried. So a moment that separates earlier writes from later ones is one that the ticks have
//! passed meanwhile.

use std::thread::sleep;
use std::time::Duration;

use belljar_spec::Moment;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// When a run was requested: earlier changes are not made by that run.
#[derive(Clone, Copy, Debug)]
pub struct Arrival(Moment);

impl Arrival {
    pub fn now() -> Self {
        Self(moment(clock_gettime(ClockId::Realtime)))
    }

    /// After every stamp that was there at the arrival, and not after any that is still to come. Waits for a tick
    /// where none has passed.
    pub fn passed(self) -> Moment {
        const STEP: Duration = Duration::from_micros(500);
        const MAX_STEPS: u32 = 200; // a clock that is set back is not waited for
        for _ in 0..MAX_STEPS {
            let now = ticked();
            if now > self.0 {
                return now;
            }
            sleep(STEP);
        }
        ticked()
    }
}

/// Not after any stamp that is still to come.
pub(crate) fn ticked() -> Moment {
    moment(clock_gettime(ClockId::RealtimeCoarse))
}

fn moment(time: Timespec) -> Moment {
    Moment { secs: time.tv_sec, nanos: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::fs::{File, Metadata};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn stamped(file: &Metadata) -> Moment {
        Moment { secs: file.ctime(), nanos: u32::try_from(file.ctime_nsec()).unwrap() }
    }

    #[test]
    fn what_was_written_before_and_after_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let early = dir.path().join(format!("early-{round}"));
            File::create(&early).unwrap().metadata().unwrap(); // looked at: the next stamp is a fine one
            std::fs::write(&early, "x").unwrap();
            let between = Arrival::now().passed();
            let late = File::create(dir.path().join(format!("late-{round}"))).unwrap();
            assert!(stamped(&std::fs::metadata(&early).unwrap()) < between, "round {round}");
            assert!(stamped(&late.metadata().unwrap()) >= between, "round {round}");
        }
    }
}
