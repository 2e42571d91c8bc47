//! Takes one file out of an archive that a sandbox sends.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use belljar_spec::OsText;
use belljar_spec::text::escape;
use belljar_spec::wire::archive::{Entry, EntryKind, MAX_PATH};

use super::FileError;

/// The longest reason that is shown for a file that cannot be read.
const MAX_REASON: u64 = 2048;
/// Memory that an announced size alone can reserve.
const MAX_RESERVED: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    Bytes(Vec<u8>),
    LinkTo(PathBuf),
}

#[derive(Debug)]
enum Expecting {
    First,
    /// The content of this entry that was not taken yet, and how much there was in all.
    Content(Entry, Vec<u8>, u64),
    End(FileContent),
    Nothing(FileContent),
}

#[derive(Debug)]
pub(super) struct FileReader {
    path: OsText,
    limit: u64,
    header: Vec<u8>,
    expecting: Expecting,
}

impl FileReader {
    pub(super) fn new(path: OsText, limit: u64) -> Self {
        Self { path, limit, header: Vec::new(), expecting: Expecting::First }
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), FileError> {
        while !bytes.is_empty() {
            if let Expecting::Content(entry, content, arrived) = &mut self.expecting {
                let left = entry.size - *arrived;
                let take = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                content.extend_from_slice(&bytes[..take]);
                *arrived += take as u64;
                bytes = &bytes[take..];
                self.end_content()?;
                continue;
            }
            // Byte by byte: a header is a few bytes, and what follows it is not part of it.
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let Some((entry, _)) = Entry::read(&self.header)? {
                self.header.clear();
                self.begin(entry)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, entry: Entry) -> Result<(), FileError> {
        match std::mem::replace(&mut self.expecting, Expecting::First) {
            Expecting::End(content) => match entry.kind {
                EntryKind::End => self.expecting = Expecting::Nothing(content),
                // What follows a file is the reason why it is not whole.
                EntryKind::Skipped => return Err(FileError::Changed { path: self.path.clone() }),
                _ => return Err(self.invalid("a second entry follows the file")),
            },
            Expecting::First if !entry.path.is_empty() => {
                return Err(self.invalid("the first entry has a name"));
            }
            Expecting::First => self.begin_first(entry)?,
            Expecting::Content(..) | Expecting::Nothing(_) => {
                return Err(self.invalid("there is data after the end"));
            }
        }
        Ok(())
    }

    fn begin_first(&mut self, entry: Entry) -> Result<(), FileError> {
        let (path, size, limit) = (self.path.clone(), entry.size, self.limit);
        match entry.kind {
            EntryKind::File if size > limit => {
                return Err(FileError::TooLarge { path, size, limit });
            }
            EntryKind::Directory => return Err(FileError::IsDirectory { path }),
            EntryKind::End => return Err(self.invalid("there is no file in it")),
            EntryKind::Link if size > MAX_PATH as u64 => {
                return Err(self.invalid("the link is too long"));
            }
            EntryKind::Skipped if size > MAX_REASON => {
                return Err(self.invalid("the reason is too long"));
            }
            EntryKind::File | EntryKind::Link | EntryKind::Skipped => {}
        }
        let reserved = usize::try_from(size.min(MAX_RESERVED)).unwrap_or(0);
        self.expecting = Expecting::Content(entry, Vec::with_capacity(reserved), 0);
        self.end_content()
    }

    fn end_content(&mut self) -> Result<(), FileError> {
        let Expecting::Content(entry, content, arrived) = &mut self.expecting else {
            return Ok(());
        };
        if *arrived < entry.size {
            return Ok(());
        }
        let content = std::mem::take(content);
        let content = match entry.kind {
            EntryKind::Link => FileContent::LinkTo(OsStr::from_bytes(&content).into()),
            EntryKind::Skipped => {
                let why = escape(&content);
                return Err(FileError::NotAFile { path: self.path.clone(), why });
            }
            _ => FileContent::Bytes(content),
        };
        self.expecting = Expecting::End(content);
        Ok(())
    }

    /// The content of a file that has arrived since the last call.
    pub(super) fn take_content(&mut self) -> Vec<u8> {
        match &mut self.expecting {
            Expecting::Content(entry, content, _) if entry.kind == EntryKind::File => {
                std::mem::take(content)
            }
            Expecting::End(FileContent::Bytes(content))
            | Expecting::Nothing(FileContent::Bytes(content)) => std::mem::take(content),
            _ => Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Result<FileContent, FileError> {
        match self.expecting {
            Expecting::Nothing(content) if self.header.is_empty() => Ok(content),
            Expecting::Nothing(_) => Err(self.invalid("there is data after the end")),
            _ => Err(self.invalid("it ended too early")),
        }
    }

    fn invalid(&self, why: &'static str) -> FileError {
        FileError::Invalid { path: self.path.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, path: &str, content: &[u8]) -> Vec<u8> {
        let (path, size) = (path.as_bytes().to_vec(), content.len() as u64);
        let mut bytes = Vec::new();
        Entry { kind, mode: 0o644, path, size, modified: 0 }.write(&mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    /// In pieces of every size: nothing depends on where a piece ends.
    fn read(parts: &[Vec<u8>]) -> Result<FileContent, FileError> {
        let bytes = parts.concat();
        let in_pieces = |size: usize| {
            let mut reader = FileReader::new("file".into(), 100);
            bytes.chunks(size).try_for_each(|piece| reader.feed(piece))?;
            reader.finish()
        };
        let whole = in_pieces(bytes.len().max(1));
        for size in [1, 2, 7] {
            let piecewise = in_pieces(size);
            assert_eq!(format!("{piecewise:?}"), format!("{whole:?}"));
        }
        whole
    }

    #[test]
    fn one_file_or_link_is_taken() {
        let end = entry(EntryKind::End, "", b"");
        for content in [&b""[..], b"x", &[7; 100]] {
            let file = read(&[entry(EntryKind::File, "", content), end.clone()]).unwrap();
            assert_eq!(file, FileContent::Bytes(content.to_vec()));
        }
        let link = read(&[entry(EntryKind::Link, "", b"../there"), end]).unwrap();
        assert_eq!(link, FileContent::LinkTo("../there".into()));
    }

    #[test]
    fn anything_else_is_refused() {
        let end = || entry(EntryKind::End, "", b"");
        let file = || entry(EntryKind::File, "", b"x");
        let refused = |parts: &[Vec<u8>]| read(parts).unwrap_err();
        let large = refused(&[entry(EntryKind::File, "", &[0; 101]), end()]);
        assert!(matches!(large, FileError::TooLarge { size: 101, limit: 100, .. }), "{large}");
        let directory = refused(&[entry(EntryKind::Directory, "", b""), end()]);
        assert!(matches!(directory, FileError::IsDirectory { .. }), "{directory}");
        let fifo = refused(&[entry(EntryKind::Skipped, "", b"a FIFO\x1b[2J"), end()]);
        assert!(
            matches!(&fifo, FileError::NotAFile { why, .. } if !why.contains('\x1b')),
            "{fifo}"
        );
        let shrunk = refused(&[file(), entry(EntryKind::Skipped, "", b"it shrank"), end()]);
        assert!(matches!(shrunk, FileError::Changed { .. }), "{shrunk}");
        for parts in [
            vec![],
            vec![file()],
            vec![end()],
            vec![file(), file(), end()],
            vec![file(), end(), vec![0]],
            vec![file(), end(), end()],
            vec![entry(EntryKind::File, "named", b"x"), end()],
            vec![entry(EntryKind::Link, "", &[b'a'; MAX_PATH + 1]), end()],
        ] {
            let error = read(&parts);
            assert!(
                matches!(error, Err(FileError::Invalid { .. } | FileError::Archive(_))),
                "{error:?}"
            );
        }
    }
}
