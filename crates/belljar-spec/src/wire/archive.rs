//! Encodes a tree of files as a byte stream, to copy it through the channel.
//!
//! A sequence of entries: a header, then as many bytes as the header's size field states. Little-endian. The
//! reader on the host treats every header as hostile: this module only checks that a header is well-formed;
//! the code that writes the files decides where an entry may go.

/// Deeper trees are refused on both sides.
pub const MAX_DEPTH: usize = 128;
/// Longer paths are refused on both sides.
pub const MAX_PATH: usize = 4096;
/// kind, mode, path length, size, seconds.
pub const HEADER: usize = 1 + 4 + 4 + 8 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    /// `size` bytes of target follow.
    Link,
    /// Something that is not copied: a device, a FIFO, a socket, or what could not be read. `size` bytes
    /// of explanation follow.
    Skipped,
    /// The last entry; without it the tree is not whole.
    End,
}

impl EntryKind {
    fn code(self) -> u8 {
        match self {
            Self::File => b'f',
            Self::Directory => b'd',
            Self::Link => b'l',
            Self::Skipped => b's',
            Self::End => b'e',
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::File, Self::Directory, Self::Link, Self::Skipped, Self::End]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// What an entry begins with. The path is relative to the top of the tree; the top itself has an empty
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    /// Permission bits only.
    pub mode: u32,
    pub path: Vec<u8>,
    pub size: u64,
    /// When it was last changed, in seconds.
    pub modified: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    #[error("unknown kind of entry")]
    Kind,
    #[error("a path is longer than {MAX_PATH} bytes")]
    LongPath,
    #[error("a path is deeper than {MAX_DEPTH} directories")]
    Deep,
    #[error("a path is not plain and relative: \"{0}\"")]
    Path(String),
}

impl Entry {
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind.code());
        out.extend_from_slice(&self.mode.to_le_bytes());
        out.extend_from_slice(&(self.path.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.modified.to_le_bytes());
        out.extend_from_slice(&self.path);
    }

    /// Whether this can be an entry of a listing: the top, which has no name, or a name in it. A listing is headers
    /// only, and no content follows. A file's header has its size; a link, a directory and what has another kind
    /// (`Skipped`) have none. A path that does not exist has only an `End`.
    pub fn is_listed(&self) -> bool {
        let has_size = match self.kind {
            EntryKind::File => true,
            EntryKind::Directory | EntryKind::Link | EntryKind::Skipped | EntryKind::End => false,
        };
        !self.path.contains(&b'/') && (has_size || self.size == 0)
    }

    /// The entry at the start of `bytes` and how long it is, or `None` if more bytes are needed.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, ArchiveError> {
        let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
        let kind = EntryKind::from_code(header[0]).ok_or(ArchiveError::Kind)?;
        let length = number::<4>(header, 5) as usize;
        if length > MAX_PATH {
            return Err(ArchiveError::LongPath);
        }
        let Some(path) = bytes.get(HEADER..HEADER + length) else { return Ok(None) };
        check_path(path)?;
        let entry = Self {
            kind,
            mode: number::<4>(header, 1) as u32 & 0o777,
            path: path.to_vec(),
            size: number::<8>(header, 9),
            modified: number::<8>(header, 17) as i64,
        };
        Ok(Some((entry, HEADER + length)))
    }
}

/// Plain names joined by single slashes: nothing that leads anywhere else.
fn check_path(path: &[u8]) -> Result<(), ArchiveError> {
    if path.is_empty() {
        return Ok(());
    }
    let names = path.split(|byte| *byte == b'/');
    let mut depth = 0;
    for name in names {
        depth += 1;
        if matches!(name, b"" | b"." | b"..") || name.contains(&0) || name.len() > 255 {
            return Err(ArchiveError::Path(crate::text::escape(path)));
        }
    }
    if depth > MAX_DEPTH { Err(ArchiveError::Deep) } else { Ok(()) }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &[u8]) -> Entry {
        Entry { kind: EntryKind::File, mode: 0o644, path: path.to_vec(), size: 7, modified: -1 }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_not_before_it_is_whole() {
        let mut bytes = Vec::new();
        entry(b"a\nb/\xff").write(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Entry::read(&bytes[..length]), Ok(None), "{length}");
        }
        let whole = bytes.len();
        bytes.extend_from_slice(b"content");
        assert_eq!(Entry::read(&bytes), Ok(Some((entry(b"a\nb/\xff"), whole))));
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        let deep = [b"d".as_slice(); MAX_DEPTH + 1].join(&b'/');
        for bad in [&b"../x"[..], b"/etc", b"a//b", b"a/./b", b"a/..", b"a/", b"a\0b", &deep] {
            let mut bytes = Vec::new();
            entry(bad).write(&mut bytes);
            assert!(Entry::read(&bytes).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_setuid_bit_does_not_cross() {
        let mut bytes = Vec::new();
        Entry { mode: 0o106755, ..entry(b"x") }.write(&mut bytes);
        assert_eq!(Entry::read(&bytes).unwrap().unwrap().0.mode, 0o755);
    }
}
