//! Durations: `90s`, `4h`, `1h30m`, `250ms`. A bare number is seconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::number::{Decimal, Scaled};

/// A length of time in whole milliseconds, the finest unit that is stored or measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HumanDuration {
    millis: u64,
}

const UNITS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HumanDurationError {
    #[error("\"{0}\" is not a duration; write 90s, 4h, 1h30m or 250ms (a bare number is seconds)")]
    Shape(String),
    #[error("\"{given}\" has the unknown unit \"{unit}\"; use d, h, m, s or ms")]
    Unit { given: String, unit: String },
    #[error("\"{0}\" is too long")]
    TooLarge(String),
    #[error("\"{0}\" is finer than a millisecond")]
    TooFine(String),
}

impl HumanDuration {
    pub const fn from_millis(millis: u64) -> Self {
        Self { millis }
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self { millis: seconds.saturating_mul(1_000) }
    }

    pub const fn as_millis(self) -> u64 {
        self.millis
    }

    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }

    pub const fn is_zero(self) -> bool {
        self.millis == 0
    }
}

/// Whole milliseconds.
impl From<Duration> for HumanDuration {
    fn from(time: Duration) -> Self {
        Self::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<HumanDuration> for Duration {
    fn from(span: HumanDuration) -> Self {
        span.as_duration()
    }
}

impl FromStr for HumanDuration {
    type Err = HumanDurationError;

    fn from_str(text: &str) -> Result<Self, HumanDurationError> {
        let shown = || crate::text::escape(text.as_bytes());
        let mut rest = text.trim();
        let mut millis: u64 = 0;
        let mut first = true;
        loop {
            let (number, after) =
                Decimal::take(rest).ok_or_else(|| HumanDurationError::Shape(shown()))?;
            let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(end);
            let unit = unit.trim().to_ascii_lowercase();
            let scale = match unit.as_str() {
                "" if first && next.is_empty() => 1_000,
                "" => return Err(HumanDurationError::Shape(shown())),
                unit => scale_of(unit).ok_or_else(|| HumanDurationError::Unit {
                    given: shown(),
                    unit: crate::text::escape(unit.as_bytes()),
                })?,
            };
            let part = match number.times(scale) {
                Scaled::Exact(part) => part,
                Scaled::Cut(_) => return Err(HumanDurationError::TooFine(shown())),
                Scaled::TooLarge => return Err(HumanDurationError::TooLarge(shown())),
            };
            millis =
                millis.checked_add(part).ok_or_else(|| HumanDurationError::TooLarge(shown()))?;
            if next.is_empty() {
                return Ok(Self { millis });
            }
            (rest, first) = (next, false);
        }
    }
}

fn scale_of(unit: &str) -> Option<u64> {
    let name = match unit {
        "sec" | "secs" | "second" | "seconds" => "s",
        "min" | "mins" | "minute" | "minutes" => "m",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        other => other,
    };
    UNITS.iter().find(|(known, _)| *known == name).map(|(_, scale)| *scale)
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.millis == 0 {
            return f.pad("0s");
        }
        let mut shown = String::new();
        let mut left = self.millis;
        for (unit, scale) in UNITS {
            if left >= *scale {
                shown.push_str(&format!("{}{unit}", left / scale));
                left %= scale;
            }
        }
        f.pad(&shown)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;
        impl Visitor<'_> for SpanVisitor {
            type Value = HumanDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"90s\", or a number of seconds")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<HumanDuration, E> {
                seconds.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<HumanDuration, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SpanVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up_and_a_bare_number_is_seconds() {
        let cases = [
            ("0", 0),
            ("90", 90_000),
            ("0.25", 250),
            ("90s", 90_000),
            ("250ms", 250),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1h 30m 5s", 5_405_000),
            ("15min", 900_000),
        ];
        for (text, millis) in cases {
            assert_eq!(text.parse(), Ok(HumanDuration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for text in ["", "h", "-1s", "1h30", "30 5s", "1..5s", "soon"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text}");
        }
        let unit = "3y".parse::<HumanDuration>().unwrap_err();
        assert!(unit.to_string().contains("unknown unit \"y\""), "{unit}");
        assert_eq!(
            "0.0001s".parse::<HumanDuration>(),
            Err(HumanDurationError::TooFine("0.0001s".into()))
        );
        let endless = "18446744073709551615d";
        assert_eq!(
            endless.parse::<HumanDuration>(),
            Err(HumanDurationError::TooLarge(endless.into()))
        );
    }

    #[test]
    fn the_printed_form_is_what_a_person_writes() {
        assert_eq!(HumanDuration::from_millis(5_400_000).to_string(), "1h30m");
        assert_eq!(HumanDuration::from_secs(10).to_string(), "10s");
        assert_eq!(HumanDuration::from_millis(0).to_string(), "0s");
    }
}
