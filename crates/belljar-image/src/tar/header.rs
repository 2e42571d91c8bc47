//! The 512 bytes that begin every entry.

use super::TarError;

/// Everything in an archive is a multiple of this.
pub(crate) const BLOCK: usize = 512;

pub(super) struct Header<'a> {
    bytes: &'a [u8; BLOCK],
    /// Of the archive, for messages.
    at: u64,
}

impl<'a> Header<'a> {
    pub(super) fn parse(bytes: &'a [u8; BLOCK], at: u64) -> Result<Self, TarError> {
        let header = Self { bytes, at };
        let expected = header.octal(148, 8).ok_or(TarError::Header { at })?;
        let is_checksum = |index: usize| (148..156).contains(&index);
        let (mut unsigned, mut signed) = (0_i64, 0_i64);
        for (index, byte) in bytes.iter().enumerate() {
            let byte = if is_checksum(index) { b' ' } else { *byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte as i8);
        }
        let expected = i64::try_from(expected).unwrap_or(-1);
        // Some very old programs added up signed characters.
        match expected == unsigned || expected == signed {
            true => Ok(header),
            false => Err(TarError::Header { at }),
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.bytes[156]
    }

    fn is_gnu(&self) -> bool {
        self.bytes[257..265] == *b"ustar  \0"
    }

    fn is_ustar(&self) -> bool {
        self.bytes[257..263] == *b"ustar\0"
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.bytes[..100]);
        let prefix = text(&self.bytes[345..500]);
        if self.is_ustar() && !self.is_gnu() && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.bytes[157..257]).to_vec()
    }

    pub(super) fn mode(&self) -> Result<u32, TarError> {
        // Some archivers keep the kind in the upper bits.
        Ok((self.number(100, 8, "the mode")? & 0o7777) as u32)
    }

    pub(super) fn uid(&self) -> Result<u64, TarError> {
        self.number(108, 8, "the owner")
    }

    pub(super) fn gid(&self) -> Result<u64, TarError> {
        self.number(116, 8, "the group")
    }

    pub(super) fn size(&self) -> Result<u64, TarError> {
        self.number(124, 12, "the size")
    }

    /// Seconds; before 1970 only in the binary form.
    pub(super) fn modified(&self) -> Result<i64, TarError> {
        let bad = || TarError::Number { at: self.at, field: "the time" };
        if let Some(number) = binary(&self.bytes[136..148]) {
            return i64::try_from(number.ok_or_else(bad)?).map_err(|_| bad());
        }
        self.octal(136, 12).and_then(|number| i64::try_from(number).ok()).ok_or_else(bad)
    }

    /// The four pieces that an old GNU sparse header has room for, and whether a block with more follows.
    pub(super) fn old_sparse(&self) -> Result<(Vec<(u64, u64)>, bool), TarError> {
        let pieces = sparse_pieces(&self.bytes[386..482], self.at)?;
        Ok((pieces, self.bytes[482] != 0))
    }

    /// The size of an old GNU sparse file with its holes.
    pub(super) fn old_real_size(&self) -> Result<u64, TarError> {
        self.number(483, 12, "the size of a sparse file")
    }

    fn number(&self, from: usize, length: usize, field: &'static str) -> Result<u64, TarError> {
        let found = match binary(&self.bytes[from..from + length]) {
            Some(number) => number.and_then(|number| u64::try_from(number).ok()),
            None => self.octal(from, length),
        };
        found.ok_or(TarError::Number { at: self.at, field })
    }

    fn octal(&self, from: usize, length: usize) -> Option<u64> {
        octal(&self.bytes[from..from + length])
    }
}

/// Pairs of offset and length, up to the first that is empty.
pub(super) fn sparse_pieces(bytes: &[u8], at: u64) -> Result<Vec<(u64, u64)>, TarError> {
    let number = |field: &[u8]| match binary(field) {
        Some(number) => number.and_then(|number| u64::try_from(number).ok()),
        None => octal(field),
    };
    let mut pieces = Vec::new();
    for pair in bytes.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        let offset = number(&pair[..12]).ok_or(TarError::Sparse { at })?;
        let length = number(&pair[12..]).ok_or(TarError::Sparse { at })?;
        pieces.push((offset, length));
    }
    Ok(pieces)
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    let mut value = 0_u64;
    for digit in digits {
        if !(b'0'..=b'7').contains(digit) {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(value)
}

/// The binary form, marked by the first bit. Outer nothing: it is not one; inner: too large.
fn binary(field: &[u8]) -> Option<Option<i128>> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        return None;
    }
    let is_negative = first & 0x40 != 0;
    let mut value: i128 = if is_negative { -1 } else { 0 };
    for (index, byte) in field.iter().enumerate() {
        let byte = match (index, is_negative) {
            (0, false) => byte & 0x7f,
            _ => *byte,
        };
        value = match value.checked_mul(256) {
            Some(value) => value + i128::from(byte),
            None => return Some(None),
        };
    }
    Some(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(octal(b"0000644\0"), Some(0o644));
        assert_eq!(octal(b"   644 \0"), Some(0o644));
        assert_eq!(octal(b"\0\0\0\0"), Some(0));
        assert_eq!(octal(b"0000648\0"), None);
        assert_eq!(octal(b"-1\0"), None);
        let mut large = [0_u8; 12];
        large[0] = 0x80;
        large[4..].copy_from_slice(&(1_u64 << 40).to_be_bytes());
        assert_eq!(binary(&large), Some(Some(1 << 40)));
        assert_eq!(binary(&[0xff; 12]), Some(Some(-1)));
        assert_eq!(binary(b"0000644\0"), None);
    }

    #[test]
    fn a_wrong_checksum_is_no_header() {
        let mut bytes = [0_u8; BLOCK];
        bytes[0] = b'a';
        bytes[148..156].copy_from_slice(b"0000541\0"); // 8 spaces and one "a"
        assert!(Header::parse(&bytes, 0).is_ok());
        bytes[1] = b'b';
        assert!(matches!(Header::parse(&bytes, 7), Err(TarError::Header { at: 7 })));
    }
}
