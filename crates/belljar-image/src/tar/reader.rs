//! Goes through an archive entry by entry.

use std::io::{self, BufRead};

use super::header::{BLOCK, Header};
use super::pax::PaxRecords;
use super::sparse::{self, Segment};
use super::{TarError, TarLimits, read_failed};

/// What an entry makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarKind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
    /// A kind that no file of an image has, by its letter.
    Other(u8),
}

/// One entry, without its data.
#[derive(Debug)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    /// The target of a link.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: TarKind,
    /// Permission bits, setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// With the holes of a sparse file.
    pub(crate) size: u64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) segments: Option<Vec<Segment>>,
}

/// An archive in the middle of being read.
#[derive(Debug)]
pub(crate) struct TarReader<R> {
    input: R,
    limits: TarLimits,
    /// From the beginning of the archive.
    position: u64,
    /// Of the current entry's data.
    left: u64,
    padding: u64,
}

impl<R: BufRead> TarReader<R> {
    pub(crate) fn new(input: R, limits: TarLimits) -> Self {
        Self { input, limits, position: 0, left: 0, padding: 0 }
    }

    /// What is left of the input.
    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    /// How much of the archive has been read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; what is left of the current one is skipped. Nothing: the archive's end.
    pub(crate) fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        self.skip_data()?;
        let mut pax = PaxRecords::default();
        let (mut long_path, mut long_link) = (None, None);
        loop {
            let at = self.position;
            let Some(block) = self.header_block()? else { return Ok(None) };
            let header = Header::parse(&block, at)?;
            let size = header.size()?;
            match header.kind() {
                b'L' => long_path = Some(self.name(size, at, "a name")?),
                b'K' => long_link = Some(self.name(size, at, "a link target")?),
                b'x' => {
                    let most = self.limits.pax_bytes;
                    let text = self.small(size, most, at, "PAX records")?;
                    pax = PaxRecords::parse(&text, at, self.limits.sparse_segments)?;
                }
                // Defaults for all entries: in images only comments are written so.
                b'g' => {
                    self.begin_data(size);
                    self.skip_data()?;
                }
                _ => return self.entry(&header, at, pax, long_path, long_link).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        header: &Header<'_>,
        at: u64,
        mut pax: PaxRecords,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<TarEntry, TarError> {
        let path = pax.sparse.name.take().or(pax.path.take()).or(long_path);
        let path = path.unwrap_or_else(|| header.path());
        let link = pax.link.take().or(long_link).unwrap_or_else(|| header.link());
        let most = self.limits.path_bytes;
        for (text, what) in [(&path, "a name"), (&link, "a link target")] {
            if text.len() as u64 > most {
                return Err(TarError::TooLong { at, what, most });
            }
        }
        let kind = match header.kind() {
            0 | b'0' if path.ends_with(b"/") => TarKind::Directory,
            0 | b'0' | b'7' | b'S' => TarKind::File,
            b'1' => TarKind::HardLink,
            b'2' => TarKind::Symlink,
            b'3' => TarKind::CharDevice,
            b'4' => TarKind::BlockDevice,
            b'5' | b'D' => TarKind::Directory,
            b'6' => TarKind::Fifo,
            other => TarKind::Other(other),
        };
        // Only files have data. Old archivers left a size in the header of other kinds.
        let stored = match header.kind() {
            b'1'..=b'6' | b'D' => 0,
            _ => pax.size.map_or_else(|| header.size(), Ok)?,
        };
        let mut old_pieces = None;
        if header.kind() == b'S' {
            let (mut pieces, has_more) = header.old_sparse()?;
            if has_more {
                let most = self.limits.sparse_segments;
                let input = &mut self.input;
                sparse::read_old_extensions(input, &mut self.position, &mut pieces, most)?;
            }
            old_pieces = Some((pieces, header.old_real_size()?));
        }
        self.begin_data(stored);
        let (size, segments) = match kind {
            TarKind::File => self.sparse_map(stored, old_pieces, &pax, at)?,
            _ => (stored, None),
        };
        Ok(TarEntry {
            path,
            link,
            kind,
            mode: header.mode()?,
            uid: pax.uid.map_or_else(|| header.uid(), Ok)?,
            gid: pax.gid.map_or_else(|| header.gid(), Ok)?,
            modified: match pax.modified {
                Some(time) => time,
                None => (header.modified()?, 0),
            },
            size,
            xattrs: pax.xattrs,
            segments,
        })
    }

    /// The file's size, and its pieces if it is sparse.
    fn sparse_map(
        &mut self,
        stored: u64,
        old_pieces: Option<(Vec<(u64, u64)>, u64)>,
        pax: &PaxRecords,
        at: u64,
    ) -> Result<(u64, Option<Vec<Segment>>), TarError> {
        let bad = TarError::Sparse { at };
        let (pieces, real_size) = if let Some(old) = old_pieces {
            old
        } else if let Some(major) = pax.sparse.major {
            if (major, pax.sparse.minor) != (1, Some(0)) {
                return Err(bad);
            }
            let most = self.limits.sparse_segments;
            let (pieces, taken) = sparse::read_map(&mut self.input, stored, most, at)?;
            self.position += taken;
            self.left -= taken;
            (pieces, pax.sparse.real_size.ok_or(bad)?)
        } else if pax.sparse.is_listed {
            let numbers = &pax.sparse.numbers;
            if !numbers.len().is_multiple_of(2) {
                return Err(bad);
            }
            let pairs = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            (pairs, pax.sparse.real_size.ok_or(bad)?)
        } else {
            return Ok((stored, None));
        };
        let segments = sparse::checked(&pieces, real_size, self.left, at)?;
        Ok((real_size, Some(segments)))
    }

    /// A piece of the current entry's data, at most `most` bytes; empty at its end. Must be consumed.
    pub(crate) fn data(&mut self, most: u64) -> Result<&[u8], TarError> {
        let most = most.min(self.left);
        if most == 0 {
            return Ok(&[]);
        }
        // Asked for twice, since the borrow of the first would outlive a retry.
        loop {
            match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::Read(error)),
                Ok([]) => return Err(TarError::Truncated),
                Ok(_) => break,
            }
        }
        let piece = self.input.fill_buf().map_err(TarError::Read)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(&piece[..piece.len().min(most)])
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.input.consume(bytes);
        self.position += bytes as u64;
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// All of the current entry's data, which is small.
    pub(crate) fn read_all(&mut self) -> Result<Vec<u8>, TarError> {
        let mut all = Vec::new();
        loop {
            let piece = self.data(u64::MAX)?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(piece);
            let length = piece.len();
            self.consume(length);
        }
    }

    fn begin_data(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    fn skip_data(&mut self) -> Result<(), TarError> {
        self.left = self.left.saturating_add(std::mem::take(&mut self.padding));
        loop {
            let length = self.data(u64::MAX)?.len();
            if length == 0 {
                return Ok(());
            }
            self.consume(length);
        }
    }

    /// Nothing at the archive's end: two blocks of zeros, or none and no more bytes.
    fn header_block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let at = self.position;
        let Some(first) = self.block()? else { return Ok(None) };
        if first.iter().any(|byte| *byte != 0) {
            return Ok(Some(first));
        }
        match self.block()? {
            None => Ok(None),
            Some(second) if second.iter().all(|byte| *byte == 0) => Ok(None),
            Some(_) => Err(TarError::Header { at }),
        }
    }

    /// Nothing if the input ends before its first byte.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_failed(error)),
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Truncated),
                Ok(read) => {
                    filled += read;
                    self.position += read as u64;
                }
            }
        }
        Ok(Some(block))
    }

    fn name(&mut self, size: u64, at: u64, what: &'static str) -> Result<Vec<u8>, TarError> {
        // With the NUL that ends it.
        let mut name = self.small(size, self.limits.path_bytes + 1, at, what)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    fn small(
        &mut self,
        size: u64,
        most: u64,
        at: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, TarError> {
        if size > most {
            return Err(TarError::TooLong { at, what, most });
        }
        self.begin_data(size);
        let text = self.read_all()?;
        self.skip_data()?;
        Ok(text)
    }
}
