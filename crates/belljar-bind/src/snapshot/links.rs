//! Copies files with several names: the first copy stays available for the other names.
//!
//! Each has one more name in a directory of the copy that is removed at the end, since the path to the first name may
//! be long, and unreadable by then.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use belljar_tree::{Dir, HardLinkError, Identity, Metadata};
use rustix::io::Errno;

use super::index::IndexEntry;

/// Beyond this many files with several names, each name gets a separate copy.
const MAX_KNOWN: usize = 400_000;

#[derive(Debug, Default)]
pub(super) struct Links {
    pool: Option<Pool>,
    known: HashMap<Identity, (u64, IndexEntry)>,
    next: u64,
}

#[derive(Debug)]
struct Pool {
    /// It cannot be guessed.
    name: OsString,
    directory: Dir,
}

impl Links {
    /// What is known of the copy, if it got this name too.
    pub(super) fn give(
        &self,
        found: &Metadata,
        to: &Dir,
        name: &OsStr,
    ) -> Result<Option<IndexEntry>, Errno> {
        let known = self.known.get(&found.identity());
        let (Some(pool), Some((known, entry))) = (&self.pool, known) else { return Ok(None) };
        match pool.directory.hard_link(known.to_string(), to, name) {
            Ok(()) => Ok(Some(*entry)),
            Err(HardLinkError::TooManyNames { .. }) => Ok(None),
            Err(error) => Err(error.errno()),
        }
    }

    /// `name` in `of` is the copy.
    pub(super) fn keep(
        &mut self,
        root: &Dir,
        found: &Metadata,
        (of, name): (&Dir, &OsStr),
        entry: IndexEntry,
    ) -> Result<(), Errno> {
        if self.known.len() >= MAX_KNOWN {
            return Ok(());
        }
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => {
                let (name, directory) = root.create_unique_dir(".belljar-links-", 0o700)?;
                none.insert(Pool { name, directory })
            }
        };
        match of.hard_link(name, &pool.directory, self.next.to_string()) {
            Ok(()) => {
                self.known.insert(found.identity(), (self.next, entry));
                self.next += 1;
                Ok(())
            }
            Err(HardLinkError::TooManyNames { .. }) => Ok(()),
            Err(error) => Err(error.errno()),
        }
    }

    /// Removes the directory with the further names.
    pub(super) fn clear(&mut self, root: &Dir) -> Result<(), Errno> {
        let Some(pool) = self.pool.take() else { return Ok(()) };
        for known in 0..self.next {
            pool.directory.unlink(known.to_string())?;
        }
        Ok(root.remove_dir(&pool.name)?)
    }
}
