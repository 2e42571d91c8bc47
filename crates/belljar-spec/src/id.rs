//! Run ids: nine characters of time and seven random ones, so that they sort by age and their tails differ.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Digits and lower-case letters without i, l, o, u, in ASCII order.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const LENGTH: usize = 16;
const TIME_CHARS: usize = 9;
const BITS: u32 = 5;

/// A query shorter than this matches nothing.
pub const MIN_QUERY: usize = 4;

/// What a run is called by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId([u8; LENGTH]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a run id; an id has {LENGTH} digits and lower-case letters, without i, l, o, u"
)]
pub struct BadRunId(String);

impl RunId {
    /// `random` needs 35 random bits; the rest of it is not used.
    pub fn from_parts(unix_millis: u64, random: u64) -> Self {
        let mut id = [0; LENGTH];
        let (time, tail) = id.split_at_mut(TIME_CHARS);
        encode(unix_millis, time);
        encode(random, tail);
        Self(id)
    }

    pub fn as_str(&self) -> &str {
        // Only characters of the alphabet ever get in.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The random part: what listings show.
    pub fn tail(&self) -> &str {
        self.as_str().get(TIME_CHARS..).unwrap_or_default()
    }

    /// When the run was made.
    pub fn unix_millis(&self) -> u64 {
        self.0[..TIME_CHARS].iter().fold(0, |value, c| (value << BITS) | digit(*c).unwrap_or(0))
    }

    /// Whether `query` is a head or a tail of this id, of at least [`MIN_QUERY`] characters.
    pub fn matches(&self, query: &str) -> bool {
        let id = self.as_str();
        query.len() >= MIN_QUERY && (id.starts_with(query) || id.ends_with(query))
    }
}

/// The lowest bits of `value`, most significant first.
fn encode(value: u64, out: &mut [u8]) {
    let mut left = value;
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(left & 31) as usize];
        left >>= BITS;
    }
}

fn digit(c: u8) -> Option<u64> {
    ALPHABET.iter().position(|known| *known == c).map(|at| at as u64)
}

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let bad = || BadRunId(crate::text::escape(text.as_bytes()));
        let id: [u8; LENGTH] = text.as_bytes().try_into().map_err(|_| bad())?;
        if id.iter().all(|c| digit(*c).is_some()) { Ok(Self(id)) } else { Err(bad()) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({})", self.as_str())
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    One(RunId),
    None,
    /// Oldest first.
    Ambiguous(Vec<RunId>),
}

/// Whether `query` can be a head or a tail of an id.
pub fn may_be_id(query: &str) -> bool {
    (MIN_QUERY..=LENGTH).contains(&query.len()) && query.bytes().all(|c| digit(c).is_some())
}

/// The one id that `query` is a head or a tail of.
pub fn look_up(ids: impl IntoIterator<Item = RunId>, query: &str) -> Lookup {
    let mut found: Vec<RunId> = ids.into_iter().filter(|id| id.matches(query)).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [] => Lookup::None,
        [one] => Lookup::One(*one),
        _ => Lookup::Ambiguous(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_whatever_is_random_in_them() {
        let older = RunId::from_parts(1_700_000_000_000, u64::MAX);
        let newer = RunId::from_parts(1_700_000_000_001, 0);
        assert!(older < newer);
        assert_eq!(older.unix_millis(), 1_700_000_000_000);
        assert_eq!(older.tail(), "zzzzzzz");
        assert_eq!(newer.as_str().len(), 16);
    }

    #[test]
    fn a_head_or_a_tail_of_four_finds_one() {
        let a = RunId::from_parts(1_700_000_000_000, 0x1_2345_6789);
        let b = RunId::from_parts(1_700_000_000_500, 0x7_6543_2109);
        let ids = [a, b];
        assert_eq!(look_up(ids, a.tail()), Lookup::One(a));
        assert_eq!(look_up(ids, &a.tail()[3..]), Lookup::One(a));
        assert_eq!(look_up(ids, b.as_str()), Lookup::One(b));
        assert_eq!(look_up(ids, &a.as_str()[..4]), Lookup::Ambiguous(vec![a, b]));
        assert_eq!(look_up(ids, &a.tail()[4..]), Lookup::None, "three are too few");
        assert_eq!(look_up(ids, "zzzz"), Lookup::None);
    }

    #[test]
    fn a_middle_is_no_match() {
        let id = RunId::from_parts(1_700_000_000_000, 0x1_2345_6789);
        assert!(id.matches(&id.as_str()[..5]));
        assert!(!id.matches(&id.as_str()[5..10]));
    }

    #[test]
    fn only_the_alphabet_is_an_id() {
        assert!("0123456789abcdef".parse::<RunId>().is_ok());
        for bad in ["0123456789abcdeF", "0123456789abcde", "0123456789abcdel", "../../etc/passwd"] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
    }
}
