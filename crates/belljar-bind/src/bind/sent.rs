//! Prepares trees that are not mounted: they are sent over the channel, and may be brought back.

use std::path::{Path, PathBuf};

use belljar_spec::{Access, AfterRun, ApplyMoment, OsText, SentTree};

use super::{BindError, Binder, Via};
use crate::resolve::Resolved;

/// Of the file system that a tree is sent to.
pub(super) const SENT_MODE: u32 = 0o1777;

impl Binder<'_> {
    /// A tree that comes back is copied first: the copy is what is sent, and its differences to the real tree are
    /// the run's changes. Names that are hidden, sockets and devices are in neither.
    pub(super) fn prepare_sent(
        &mut self,
        source: &Resolved,
        target: &Path,
        access: Access,
        max_bytes: u64,
    ) -> Result<(), BindError> {
        if !source.is_directory() {
            return Err(BindError::SentFile { path: source.path.clone() });
        }
        if let Some(point) = self.table.below(&source.path).into_iter().next() {
            return Err(BindError::SentSubmount { path: source.path.clone(), point });
        }
        let hidden = self.hidden_in(source, Via::Layered)?;
        let (from, left_out, after) = match access {
            Access::ReadOnly => (source.path.clone(), hidden, AfterRun::Drop),
            Access::Layered | Access::Writable => {
                let copy = self.copy_to_upper(source, target, &hidden)?;
                (copy, Vec::new(), AfterRun::BringBack)
            }
        };
        if let (Access::Writable, Some(tree)) = (access, self.layered.last_mut()) {
            tree.apply = ApplyMoment::AtEnd;
        }
        // It is opened once more when it is sent, by its path.
        let stat = match after {
            AfterRun::Drop => source.stat,
            AfterRun::BringBack => rustix::fs::lstat(&from)
                .map_err(|errno| BindError::Read { path: from.clone(), error: errno.into() })?,
        };
        let identity = (stat.st_dev, stat.st_ino);
        // Joined with an empty path it would end with a slash.
        let target: PathBuf = target.components().collect();
        let target = OsText::from(target);
        self.sent.push(SentTree { target, from, identity, left_out, after, max_bytes });
        Ok(())
    }
}
