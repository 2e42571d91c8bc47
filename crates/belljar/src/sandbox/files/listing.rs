//! Takes the names in a directory out of what a sandbox sends.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, SystemTime};

use belljar_spec::OsText;
use belljar_spec::wire::archive::{Entry, EntryKind};

use super::{DirEntry, FileError, FileInfo, FileKind};

/// Entries of a directory that are kept in memory.
pub(super) const MAX_ENTRIES: usize = 200_000;

#[derive(Debug)]
pub(super) struct Listing {
    path: OsText,
    limit: usize,
    buffer: Vec<u8>,
    pub(super) top: Option<FileInfo>,
    pub(super) entries: Vec<DirEntry>,
    complete: bool,
}

impl Listing {
    /// With a limit of 0 the names are not kept, and are no error.
    pub(super) fn new(path: OsText, limit: usize) -> Self {
        let (buffer, entries) = (Vec::new(), Vec::new());
        Self { path, limit, buffer, top: None, entries, complete: false }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some((entry, length)) = Entry::read(rest)? {
            rest = &rest[length..];
            self.take(entry)?;
        }
        self.buffer = rest.to_vec(); // less than one header
        Ok(())
    }

    fn take(&mut self, entry: Entry) -> Result<(), FileError> {
        if self.complete || !entry.is_listed() {
            return Err(self.invalid("it is not a list of names"));
        }
        if entry.kind == EntryKind::End {
            self.complete = true;
            return Ok(());
        }
        let info = info(&entry);
        match (&self.top, entry.path.is_empty()) {
            (None, true) => self.top = Some(info),
            (Some(FileInfo { kind: FileKind::Directory, .. }), false) if self.limit == 0 => {}
            (Some(FileInfo { kind: FileKind::Directory, .. }), false) => {
                if self.entries.len() == self.limit {
                    let (path, limit) = (self.path.clone(), self.limit);
                    return Err(FileError::TooMany { path, limit });
                }
                self.entries.push(DirEntry { name: OsString::from_vec(entry.path), info });
            }
            _ => return Err(self.invalid("a name is where none can be")),
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Self, FileError> {
        match self.complete && self.buffer.is_empty() {
            true => Ok(self),
            false => Err(self.invalid("it ended too early")),
        }
    }

    fn invalid(&self, why: &'static str) -> FileError {
        FileError::Invalid { path: self.path.clone(), why }
    }
}

fn info(entry: &Entry) -> FileInfo {
    let kind = match entry.kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Link => FileKind::Link,
        EntryKind::Skipped | EntryKind::End => FileKind::Other,
    };
    let distance = Duration::from_secs(entry.modified.unsigned_abs());
    let modified = match entry.modified {
        0.. => SystemTime::UNIX_EPOCH.checked_add(distance),
        _ => SystemTime::UNIX_EPOCH.checked_sub(distance),
    };
    FileInfo { kind, mode: entry.mode, size: entry.size, modified }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, path: &str, size: u64, modified: i64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Entry { kind, mode: 0o644, path: path.into(), size, modified }.write(&mut bytes);
        bytes
    }

    fn list(limit: usize, parts: &[Vec<u8>]) -> Result<Listing, FileError> {
        let mut listing = Listing::new("path".into(), limit);
        parts.concat().chunks(5).try_for_each(|piece| listing.feed(piece))?;
        listing.finish()
    }

    #[test]
    fn names_are_taken_and_nothing_that_is_none() {
        let directory = || entry(EntryKind::Directory, "", 0, 1);
        let (file, end) = (entry(EntryKind::File, "a", 9, -1), entry(EntryKind::End, "", 0, 0));
        let found = list(5, &[directory(), file.clone(), end.clone()]).unwrap();
        assert_eq!(found.top.unwrap().kind, FileKind::Directory);
        assert_eq!((found.entries[0].name.to_str(), found.entries[0].info.size), (Some("a"), 9));
        assert!(list(5, std::slice::from_ref(&end)).unwrap().top.is_none());
        assert!(list(0, &[directory(), file.clone(), end.clone()]).unwrap().entries.is_empty());

        let many = list(1, &[directory(), file.clone(), file.clone(), end.clone()]);
        assert!(matches!(many, Err(FileError::TooMany { limit: 1, .. })), "{many:?}");
        for parts in [
            vec![directory(), file.clone()],
            vec![file.clone(), end.clone()],
            vec![directory(), directory(), end.clone()],
            vec![directory(), end.clone(), end.clone()],
            vec![directory(), entry(EntryKind::File, "a/b", 0, 0), end.clone()],
            vec![directory(), entry(EntryKind::Link, "a", 4, 0), end.clone()],
            vec![entry(EntryKind::File, "", 4, 0), file.clone(), end.clone()],
        ] {
            let refused = list(5, &parts);
            assert!(matches!(refused, Err(FileError::Invalid { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_date_out_of_range_is_none() {
        let end = entry(EntryKind::End, "", 0, 0);
        for (modified, known) in [(0, true), (i64::MAX, true), (i64::MIN, false)] {
            let top = list(0, &[entry(EntryKind::File, "", 0, modified), end.clone()]).unwrap().top;
            assert!(top.unwrap().modified.is_some() || !known, "{modified}");
        }
    }
}
