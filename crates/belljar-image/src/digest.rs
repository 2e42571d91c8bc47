//! Digests of content: SHA-256, checked while the bytes stream by.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// `sha256:<64 hexadecimal digits>`. Other algorithms are refused: no registry serves only them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not a digest this crate can check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{shown}\" is not a digest; write sha256: and 64 hexadecimal digits in lower case")]
pub struct BadDigest {
    shown: String,
}

impl Digest {
    /// Of a piece of memory.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digits, which are also the name of the blob's file.
    pub fn hex(&self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            text.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(HEX_DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// Reads the digits back.
    pub fn from_hex(hex: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest { shown: shown(hex) };
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| match digit {
                b'0'..=b'9' => Some(digit - b'0'),
                b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            let high = pair.first().copied().and_then(value).ok_or_else(bad)?;
            let low = pair.get(1).copied().and_then(value).ok_or_else(bad)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

fn shown(text: &str) -> String {
    let head: String = text.chars().take(100).collect();
    belljar_spec::text::escape(head.as_bytes())
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let hex = text.strip_prefix("sha256:").ok_or_else(|| BadDigest { shown: shown(text) })?;
        Self::from_hex(hex).map_err(|_| BadDigest { shown: shown(text) })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A digest in the making.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let made = self.0.finish();
        let mut bytes = [0; 32];
        bytes.copy_from_slice(made.as_ref());
        Digest(bytes)
    }
}

/// Copies all of a stream, at most `most` bytes, and tells its digest and length. `Ok(None)`: it is longer.
pub(crate) fn copy_hashed(
    from: &mut dyn BufRead,
    to: &mut dyn Write,
    most: u64,
) -> io::Result<Option<(Digest, u64)>> {
    let mut hasher = Hasher::default();
    let mut total = 0_u64;
    loop {
        let piece = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece?,
        };
        if piece.is_empty() {
            return Ok(Some((hasher.finish(), total)));
        }
        let length = piece.len();
        total += length as u64;
        if total > most {
            return Ok(None);
        }
        hasher.update(piece);
        to.write_all(piece)?;
        from.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_digest_is_sha256_and_its_text_is_read_back() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse::<Digest>().unwrap(), Digest::of(b"abc"));
        let mut copy = Vec::new();
        let copied = copy_hashed(&mut &b"abc"[..], &mut copy, 3).unwrap().unwrap();
        assert_eq!((copied, copy.as_slice()), ((Digest::of(b"abc"), 3), &b"abc"[..]));
        assert_eq!(copy_hashed(&mut &b"abc"[..], &mut Vec::new(), 2).unwrap(), None);
    }

    #[test]
    fn another_form_is_refused() {
        for text in [
            "",
            "abc",
            "sha256:",
            &ABC.to_uppercase(),
            &ABC[..70],
            "sha512:00",
            "sha256:../../../../../../../../../../../../../../../../../../../etc/passwd00000",
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
