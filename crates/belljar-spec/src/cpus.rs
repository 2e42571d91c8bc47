//! Processors: `1.5` is one and a half. Kept in thousandths.

use std::fmt;
use std::str::FromStr;

use crate::number::{Decimal, Scaled};

/// Thousandths of a processor; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpus(u32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpusError {
    #[error("\"{0}\" is not a number of processors; write 2 or 1.5")]
    Shape(String),
    #[error("\"{0}\" is finer than a thousandth of a processor")]
    TooFine(String),
    #[error("0 processors would stop everything; leave the limit out, or write none")]
    Zero,
    #[error("\"{0}\" is more processors than any machine has")]
    TooMany(String),
}

impl Cpus {
    pub fn from_millis(thousandths: u32) -> Result<Self, CpusError> {
        if thousandths == 0 { Err(CpusError::Zero) } else { Ok(Self(thousandths)) }
    }

    /// A number of processors, such as 1.5.
    pub fn from_count(count: f64) -> Result<Self, CpusError> {
        let thousandths = (count * 1_000.0).round();
        if !thousandths.is_finite() || count < 0.0 {
            return Err(CpusError::Shape(count.to_string()));
        }
        if (count * 1_000.0 - thousandths).abs() > 1e-6 {
            return Err(CpusError::TooFine(count.to_string()));
        }
        if thousandths > f64::from(u32::MAX) {
            return Err(CpusError::TooMany(count.to_string()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        Self::from_millis(thousandths as u32)
    }

    pub fn millis(self) -> u32 {
        self.0
    }
}

impl FromStr for Cpus {
    type Err = CpusError;

    fn from_str(text: &str) -> Result<Self, CpusError> {
        let shown = || crate::text::escape(text.as_bytes());
        match Decimal::take(text.trim()) {
            Some((number, "")) => match number.times(1_000) {
                Scaled::Exact(thousandths) => Self::from_millis(
                    u32::try_from(thousandths).map_err(|_| CpusError::TooMany(shown()))?,
                ),
                Scaled::Cut(_) => Err(CpusError::TooFine(shown())),
                Scaled::TooLarge => Err(CpusError::TooMany(shown())),
            },
            _ => Err(CpusError::Shape(shown())),
        }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1_000, self.0 % 1_000);
        f.pad(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_become_thousandths() {
        for (text, thousandths) in [("2", 2_000), ("1.5", 1_500), ("0.001", 1), ("0.250", 250)] {
            assert_eq!(text.parse::<Cpus>().map(Cpus::millis), Ok(thousandths), "{text}");
        }
        assert_eq!("10".parse::<Cpus>().unwrap().to_string(), "10");
        assert_eq!("0.25".parse::<Cpus>().unwrap().to_string(), "0.25");
    }

    #[test]
    fn a_count_means_what_its_text_means() {
        for count in [0.001, 0.25, 1.1, 1.5, 64.0, 0.0, 0.0001, -1.0, f64::NAN, 9_999_999.0] {
            let text = count.to_string();
            assert_eq!(Cpus::from_count(count).ok(), text.parse::<Cpus>().ok(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!("0".parse::<Cpus>(), Err(CpusError::Zero));
        assert_eq!("0.0001".parse::<Cpus>(), Err(CpusError::TooFine("0.0001".into())));
        assert_eq!("9999999".parse::<Cpus>(), Err(CpusError::TooMany("9999999".into())));
        for text in ["", "two", "1 2", "-1", "1m"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }
}
