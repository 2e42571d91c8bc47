//! Copies files with several names: the first copy stays available for the other names.
//!
//! Each has one more name in a directory of the copy that is removed at the end, since the path to the first name may
//! be long, and unreadable by then.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, linkat, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::index::IndexEntry;

/// Beyond this many files with several names, each name gets a separate copy.
const MAX_KNOWN: usize = 400_000;

#[derive(Debug, Default)]
pub(super) struct Links {
    pool: Option<Pool>,
    known: HashMap<(u64, u64), (u64, IndexEntry)>,
    next: u64,
}

#[derive(Debug)]
struct Pool {
    name: CString,
    directory: OwnedFd,
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn number(number: u64) -> CString {
    CString::new(number.to_string()).unwrap_or_default() // digits hold no NUL
}

impl Links {
    /// What is known of the copy, if it got this name too.
    pub(super) fn give(
        &self,
        stat: &Stat,
        to: impl AsFd,
        name: &CStr,
    ) -> Result<Option<IndexEntry>, Errno> {
        let known = self.known.get(&identity(stat));
        let (Some(pool), Some((known, entry))) = (&self.pool, known) else { return Ok(None) };
        match linkat(&pool.directory, number(*known), to, name, AtFlags::empty()) {
            Ok(()) => Ok(Some(*entry)),
            Err(Errno::MLINK) => Ok(None), // as many names as one file can have
            Err(error) => Err(error),
        }
    }

    /// `name` in `of` is the copy.
    pub(super) fn keep(
        &mut self,
        root: impl AsFd,
        stat: &Stat,
        (of, name): (impl AsFd, &CStr),
        entry: IndexEntry,
    ) -> Result<(), Errno> {
        if self.known.len() >= MAX_KNOWN {
            return Ok(());
        }
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => none.insert(make_pool(root)?),
        };
        match linkat(of, name, &pool.directory, number(self.next), AtFlags::empty()) {
            Ok(()) => {
                self.known.insert(identity(stat), (self.next, entry));
                self.next += 1;
                Ok(())
            }
            Err(Errno::MLINK) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What was made for this goes.
    pub(super) fn clear(&mut self, root: impl AsFd) -> Result<(), Errno> {
        let Some(pool) = self.pool.take() else { return Ok(()) };
        for known in 0..self.next {
            unlinkat(&pool.directory, number(known), AtFlags::empty())?;
        }
        unlinkat(root, &pool.name, AtFlags::REMOVEDIR)
    }
}

/// Under a name that cannot be guessed.
fn make_pool(root: impl AsFd) -> Result<Pool, Errno> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!(".belljar-links-{:032x}", u128::from_ne_bytes(random));
    let name = CString::new(name).unwrap_or_default();
    mkdirat(&root, &name, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(&root, &name, flags, Mode::empty())?;
    Ok(Pool { name, directory })
}
