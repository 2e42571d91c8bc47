//! Identifies an entry and its state, so that a later change is noticed.

use belljar_spec::Moment;
use belljar_tree::{Metadata, Timestamp};
use serde::{Deserialize, Serialize};

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    pub(crate) fn of(found: &Metadata) -> Self {
        let belljar_tree::Identity { device, inode } = found.identity();
        Self { device, inode }
    }
}

/// An inode and what changes with its content. Two that are equal have the same content, as far as a clock
/// shows that other processes cannot set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    pub(crate) identity: Identity,
    pub(crate) size: u64,
    pub(crate) modified: Moment,
    pub(crate) changed: Moment,
}

impl Fingerprint {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self {
            identity: Identity::of(found),
            size: found.size(),
            modified: moment(found.modified()),
            changed: changed(found),
        }
    }

    /// The same content, though it was given another name meanwhile: that moves the time of its last change.
    pub(crate) fn is_same_content(&self, other: &Self) -> bool {
        let Self { identity, size, modified, changed: _ } = self;
        (identity, size, modified) == (&other.identity, &other.size, &other.modified)
    }
}

/// When anything of the inode changed last. No process can set it back.
pub(crate) fn changed(found: &Metadata) -> Moment {
    moment(found.changed())
}

fn moment(time: Timestamp) -> Moment {
    Moment { secs: time.secs, nanos: time.nanos }
}
