//! Checkpoints: what a run had changed when an iteration ended, kept so that another run can begin there.
//!
//! In `checkpoints/<iteration>/` of the run's directory: the changes of each layered tree and the run's home. A
//! checkpoint counts once its event is in the log; before that its data are on disk. It is made under another name, and
//! gets its own as the last thing, so whatever has the name is whole. Nothing changes in it any more.
//!
//! What it costs grows with what the run has changed since it began, not with the tree, but for a tree that the run was
//! given a copy of: the snapshot is of the whole copy. Content is copied once, and shared with the checkpoints after it.

mod carry;
mod pin;
mod place;
mod room;
#[cfg(test)]
mod tests;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_bind::NOTE;
use belljar_bind::snapshot::{self, Begun, Previous, SnapshotError, SnapshotLimits};
use belljar_spec::{CheckpointReport, LayeredTree, Moment, RunId};

use crate::{capture_live, count_recent, upper_of};
use belljar_tree::{RemoveAllError, remove_all};

pub use self::carry::{carry_base, restore_home};
pub use self::pin::{Pin, pin};
use self::place::{DRAFT, newest_before, remove_leftovers, sync};
pub use self::place::{has_any, path, prune};
use self::room::make_room;

/// In the run's directory.
pub const CHECKPOINTS: &str = "checkpoints";
/// In a checkpoint, as in the run's directory.
const HOME: &str = "home";
/// In a checkpoint: what layered trees of another run can begin with, by their place among the run's.
pub const SEED: &str = "upper";
const DATA: &str = "data";

/// How long it may take to find out whether trees of the host changed.
const CHANGE_SCAN_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot store a checkpoint in {}", .path.display())]
    Take {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("cannot store a checkpoint in {}", .path.display())]
    Snapshot {
        path: PathBuf,
        #[source]
        error: SnapshotError,
    },
    #[error("cannot make room for a checkpoint in {}", .path.display())]
    Remove {
        path: PathBuf,
        #[source]
        error: RemoveAllError,
    },
    #[error("cannot start from the checkpoint {}", .path.display())]
    Restore {
        path: PathBuf,
        #[source]
        error: SnapshotError,
    },
    #[error("the checkpoint {} is gone, or is being removed", .path.display())]
    Gone { path: PathBuf },
    #[error("the checkpoint {} is incomplete: its writing was abandoned", .path.display())]
    Cancelled { path: PathBuf },
    #[error("the checkpoint {} is being read by another run", .path.display())]
    InUse { path: PathBuf },
    #[error("cannot take over what an earlier run saw, from {}", .path.display())]
    Base {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
}

/// What a checkpoint is taken of.
#[derive(Clone, Debug)]
pub struct Subject {
    pub run: RunId,
    /// `runs/<id>`.
    pub directory: PathBuf,
    pub trees: Vec<LayeredTree>,
    /// Trees of the host that the run can write itself: nothing of them is stored, and only whether they changed is reported.
    pub written: Vec<PathBuf>,
    /// The checkpoint of another run that this one began with: its first is compared with that.
    pub born: Option<PathBuf>,
    /// What all checkpoints of the run may take on disk: the oldest go first, the newest stays whatever it takes.
    pub most_bytes: Option<u64>,
    /// Once this is set, a checkpoint that is being taken is given up, and nothing is left of it.
    pub cancel: Arc<AtomicBool>,
}

impl Subject {
    fn go_on(&self, path: &Path) -> Result<(), CheckpointError> {
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(CheckpointError::Cancelled { path: path.to_owned() }),
            false => Ok(()),
        }
    }

    fn make_room(&self, expected: Expected) {
        let Some(most) = self.most_bytes else { return };
        let uppers = self.trees.iter().map(|note| upper_of(&self.directory, note));
        let sources = match expected {
            Expected::AnotherOne => uppers.chain([self.directory.join(HOME)]).collect(),
            Expected::Nothing => Vec::new(),
        };
        make_room(&self.directory, &sources, most, &self.cancel);
    }
}

/// What is about to be added.
enum Expected {
    AnotherOne,
    Nothing,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    pub report: CheckpointReport,
    /// Paths in the trees that are not as they were at the checkpoint before.
    pub changed: u64,
    /// Bytes of what was copied, without holes.
    on_disk: u64,
}

/// Everything is on disk when this returns. Nothing of the agent's runs meanwhile. `since` is when the iteration began.
pub fn take(subject: &Subject, iteration: u32, since: Moment) -> Result<Taken, CheckpointError> {
    let _checkpoint = tracing::debug_span!("checkpoint", iteration).entered();
    let begun = Instant::now();
    let all = subject.directory.join(CHECKPOINTS);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| CheckpointError::Take { path, error }
    };
    make_directory(&all, Existing::Fine).map_err(failed(&all))?;
    remove_leftovers(&all)?;
    let whole = path(&subject.directory, iteration);
    place::remove(&whole)?; // of an iteration that was never finished
    // Before: the old, the new and what they are copies of are all there at once.
    subject.make_room(Expected::AnotherOne);
    let draft = whole.with_extension(DRAFT);
    let filled = fill(subject, iteration, &draft).and_then(|taken| {
        subject.go_on(&whole)?;
        sync(&all).map_err(failed(&all))?;
        std::fs::rename(&draft, &whole).map_err(failed(&whole))?;
        std::fs::File::open(&all).and_then(|all| all.sync_all()).map_err(failed(&all))?;
        Ok(taken)
    });
    let mut taken = filled.inspect_err(|_| drop(remove_all(&draft)))?;
    subject.make_room(Expected::Nothing);
    let until = Instant::now() + CHANGE_SCAN_TIMEOUT;
    let written = subject.written.iter().map(|tree| count_recent(tree, since, until));
    taken.changed += written.sum::<u64>();
    taken.report.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(taken)
}

fn fill(subject: &Subject, iteration: u32, draft: &Path) -> Result<Taken, CheckpointError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| CheckpointError::Take { path, error }
    };
    for note in &subject.trees {
        capture_live(&subject.directory, &subject.run, note, &subject.cancel);
    }
    subject.go_on(draft)?;
    make_directory(draft, Existing::Wrong).map_err(failed(draft))?;
    let seed = draft.join(SEED);
    make_directory(&seed, Existing::Wrong).map_err(failed(&seed))?;
    let begun = Begun::now(draft).map_err(|errno| failed(draft)(errno.into()))?;
    let before = newest_before(&subject.directory, iteration).or_else(|| subject.born.clone());
    let mut taken = Taken::default();
    let home = Copied {
        from: subject.directory.join(HOME),
        to: draft.join(HOME),
        before: before.as_ref().map(|before| before.join(HOME)),
    };
    home.take(begun, &subject.cancel, subject.most_bytes, &mut taken)?;
    for (place, note) in subject.trees.iter().enumerate() {
        let at = seed.join(place.to_string());
        make_directory(&at, Existing::Wrong).map_err(failed(&at))?;
        let text = serde_json::to_vec(note).map_err(|error| failed(&at)(error.into()))?;
        std::fs::write(at.join(NOTE), text).map_err(failed(&at))?;
        let in_that = |before: &PathBuf| before.join(SEED).join(place.to_string()).join(DATA);
        let tree = Copied {
            from: upper_of(&subject.directory, note),
            to: at.join(DATA),
            before: before.as_ref().map(in_that),
        };
        taken.changed += tree.take(begun, &subject.cancel, subject.most_bytes, &mut taken)?;
    }
    Ok(taken)
}

/// One snapshot of a checkpoint.
struct Copied {
    from: PathBuf,
    to: PathBuf,
    before: Option<PathBuf>,
}

impl Copied {
    /// How many paths changed.
    fn take(
        &self,
        begun: Begun,
        cancel: &AtomicBool,
        most: Option<u64>,
        sum: &mut Taken,
    ) -> Result<u64, CheckpointError> {
        let previous = self.before.as_deref().and_then(Previous::open);
        let path = self.to.clone();
        // Of all its parts together.
        let bytes = most.unwrap_or(u64::MAX).saturating_sub(sum.on_disk);
        let limits = SnapshotLimits { cancel, bytes };
        let taken = snapshot::take_with_limits(limits, &self.from, &self.to, begun, previous)
            .map_err(|error| match error {
                SnapshotError::Cancelled => CheckpointError::Cancelled { path },
                error => CheckpointError::Snapshot { path, error },
            })?;
        sum.on_disk += taken.on_disk;
        sum.report.files += taken.files;
        sum.report.bytes += taken.bytes;
        sum.report.new_files += taken.new_files;
        sum.report.new_bytes += taken.new_bytes;
        sum.report.left_out += taken.left_out + taken.unsettled;
        Ok(taken.changed)
    }
}

enum Existing {
    Fine,
    Wrong,
}

fn make_directory(path: &Path, existing: Existing) -> std::io::Result<()> {
    match (std::fs::DirBuilder::new().mode(0o700).create(path), existing) {
        (Err(error), Existing::Fine) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        (made, _) => made,
    }
}
