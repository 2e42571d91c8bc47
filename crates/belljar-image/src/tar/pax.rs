//! PAX records: `LENGTH KEY=VALUE\n`, each of which replaces a field of the header after it.

use data_encoding::BASE64;
use percent_encoding::percent_decode;

use super::TarError;

/// What is used of one entry's records.
#[derive(Debug, Default)]
pub(super) struct PaxRecords {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) modified: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: PaxSparse,
}

/// The three ways in which GNU tar puts a sparse file into a PAX archive.
#[derive(Debug, Default)]
pub(super) struct PaxSparse {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) real_size: Option<u64>,
    /// Versions 0.0 (a record for each number) and 0.1 (one record).
    pub(super) numbers: Vec<u64>,
    pub(super) is_listed: bool,
}

impl PaxRecords {
    pub(super) fn parse(mut text: &[u8], at: u64, segments: usize) -> Result<Self, TarError> {
        let bad = || TarError::Pax { at };
        let mut records = Self::default();
        while !text.is_empty() {
            // Some writers pad with zeros.
            if text.iter().all(|byte| *byte == 0) {
                break;
            }
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length =
                usize::try_from(decimal(&text[..space]).ok_or_else(bad)?).map_err(|_| bad())?;
            let record = text.get(space + 1..length).ok_or_else(bad)?;
            text = &text[length..];
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            records.set(&record[..equals], &record[equals + 1..], segments).ok_or_else(bad)?;
        }
        Ok(records)
    }

    /// An empty value takes the record back, as POSIX has it.
    fn set(&mut self, key: &[u8], value: &[u8], segments: usize) -> Option<()> {
        let bytes = || (!value.is_empty()).then(|| value.to_vec());
        let number = || match value.is_empty() {
            true => Some(None),
            false => decimal(value).map(Some),
        };
        match key {
            b"path" => self.path = bytes(),
            b"linkpath" => self.link = bytes(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.modified = if value.is_empty() { None } else { Some(time(value)?) },
            b"GNU.sparse.major" => self.sparse.major = number()?,
            b"GNU.sparse.minor" => self.sparse.minor = number()?,
            b"GNU.sparse.name" => self.sparse.name = bytes(),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.real_size = number()?,
            b"GNU.sparse.numblocks" => self.sparse.is_listed = true,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.numbers.push(decimal(value)?);
            }
            b"GNU.sparse.map" => {
                self.sparse.is_listed = true;
                self.sparse.numbers = match value.is_empty() {
                    true => Vec::new(),
                    false => {
                        value.split(|byte| *byte == b',').map(decimal).collect::<Option<_>>()?
                    }
                };
            }
            _ => self.set_xattr(key, value),
        }
        (self.sparse.numbers.len() / 2 <= segments).then_some(())
    }

    /// The later of two for one name counts.
    fn set_xattr(&mut self, key: &[u8], value: &[u8]) {
        let (name, value) = if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            (name.to_vec(), value.to_vec())
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let Ok(value) = BASE64.decode(value) else { return };
            (percent_decode(name).collect(), value)
        } else {
            return; // atime, comment, and what programs write for themselves
        };
        self.xattrs.retain(|(other, _)| *other != name);
        self.xattrs.push((name, value));
    }
}

pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Seconds with a fraction, perhaps negative.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let mut nanos = 0_u32;
    for place in 0..9 {
        let digit = match fraction.get(place) {
            None => 0,
            Some(digit) if digit.is_ascii_digit() => u32::from(digit - b'0'),
            Some(_) => return None,
        };
        nanos = nanos * 10 + digit;
    }
    Some(match (is_negative, nanos) {
        (false, _) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> Vec<u8> {
        let body = format!(" {key}={value}\n");
        let mut length = body.len() + 1;
        while length.to_string().len() + body.len() != length {
            length += 1;
        }
        format!("{length}{body}").into_bytes()
    }

    #[test]
    fn records_are_read_and_the_last_counts() {
        let text = [
            record("path", "one"),
            record("path", "two"),
            record("uid", "70000"),
            record("mtime", "-1.25"),
            record("SCHILY.xattr.user.a", "x=y"),
            record("LIBARCHIVE.xattr.user.b%2e", "eHk="),
            record("comment", "anything"),
        ]
        .concat();
        let records = PaxRecords::parse(&text, 0, 10).unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"two"[..]));
        assert_eq!(records.uid, Some(70000));
        assert_eq!(records.modified, Some((-2, 750_000_000)));
        let expected =
            [(b"user.a".to_vec(), b"x=y".to_vec()), (b"user.b.".to_vec(), b"xy".to_vec())];
        assert_eq!(records.xattrs, expected);
    }

    #[test]
    fn malformed_records_are_refused() {
        for text in [
            &b"5 a=b"[..],
            b"99 path=a\n",
            b"x path=a\n",
            b"0 path=a\n",
            b"11 size=-1\n\n",
            b"12 mtime=1.x\n",
            b"8 nopair\n",
            b"18446744073709551616 a=b\n",
        ] {
            assert!(PaxRecords::parse(text, 3, 10).is_err(), "{:?}", text);
        }
        let map = record("GNU.sparse.map", "0,1,2,3,4,5");
        assert!(PaxRecords::parse(&map, 0, 3).is_ok(), "the control");
        assert!(PaxRecords::parse(&map, 0, 2).is_err());
    }
}
