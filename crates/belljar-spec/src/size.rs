//! Sizes in bytes: `512m`, `2g`, `1.5GiB`. Every unit is binary, as docker's are.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::number::{Decimal, Scaled};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

const UNITS: &[(&str, u32)] = &[("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40), ("p", 50)];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("\"{0}\" is not a size; write a number and a unit, such as 512m, 2g or 1.5GiB")]
    Shape(String),
    #[error("\"{given}\" has the unknown unit \"{unit}\"; use b, k, m, g, t or p")]
    Unit { given: String, unit: String },
    #[error("\"{0}\" is too large")]
    TooLarge(String),
    #[error("\"{0}\" is a fraction of a byte; add a unit, such as 1.5g")]
    PartOfByte(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let shown = || crate::text::escape(text.as_bytes());
        let (number, unit) = Decimal::take(text.trim()).ok_or_else(|| SizeError::Shape(shown()))?;
        let unit = unit.trim().to_ascii_lowercase();
        let unknown =
            || SizeError::Unit { given: shown(), unit: crate::text::escape(unit.as_bytes()) };
        let shift = shift_of(&unit).ok_or_else(unknown)?;
        match number.times(1 << shift) {
            Scaled::Exact(bytes) => Ok(Self(bytes)),
            Scaled::Cut(bytes) if shift > 0 => Ok(Self(bytes)),
            Scaled::Cut(_) => Err(SizeError::PartOfByte(shown())),
            Scaled::TooLarge => Err(SizeError::TooLarge(shown())),
        }
    }
}

/// `g`, `gb` and `gib` are the same thing.
fn shift_of(unit: &str) -> Option<u32> {
    if unit == "b" {
        return Some(0);
    }
    UNITS.iter().find_map(|(letter, shift)| {
        let rest = unit.strip_prefix(letter)?;
        let known = rest.is_empty() || (*shift > 0 && matches!(rest, "b" | "ib"));
        known.then_some(*shift)
    })
}

impl fmt::Display for Size {
    /// The largest unit that represents it exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |shift: u32| self.0 != 0 && self.0.trailing_zeros() >= shift;
        let (letter, shift) =
            UNITS.iter().rev().find(|(_, shift)| exact(*shift)).copied().unwrap_or(("", 0));
        f.pad(&format!("{}{letter}", self.0 >> shift))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"512m\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom("a size cannot be negative"))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_and_case_does_not_matter() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("100kb", 100 << 10),
            ("512m", 512 << 20),
            ("512M", 512 << 20),
            ("2g", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("1.5 gib", 3 << 29),
            ("3TB", 3 << 40),
            ("1pib", 1 << 50),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for text in ["", "m", "-1", "1..5g", "1.g", ".5g", "0x10", "١", "1e3"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        let unit = "10q".parse::<Size>().unwrap_err();
        assert!(unit.to_string().contains("unknown unit \"q\""), "{unit}");
        assert_eq!("16777216t".parse::<Size>(), Err(SizeError::TooLarge("16777216t".into())));
        assert_eq!("16383p".parse::<Size>(), Ok(Size(16383 << 50)));
        assert_eq!("1.5".parse::<Size>(), Err(SizeError::PartOfByte("1.5".into())));
    }

    #[test]
    fn the_printed_form_is_short_and_exact() {
        for (bytes, text) in [(0, "0"), (512 << 20, "512m"), (3 << 29, "1536m"), (1025, "1025")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_number_of_bytes_is_a_size_in_json_too() {
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Size>("\"4k\"").unwrap(), Size(4096));
        assert!(serde_json::from_str::<Size>("-1").is_err());
    }
}
