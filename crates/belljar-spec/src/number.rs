//! Parses decimal numbers exactly: no floating point, no overflow, no sign.

/// A decimal number as written: `whole.fraction`, the fraction with its number of digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    whole: u64,
    fraction: u64,
    digits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaled {
    Exact(u64),
    /// The result is not whole; this is the whole part of it.
    Cut(u64),
    TooLarge,
}

/// Further digits after the point make no difference in bytes or milliseconds.
const MAX_FRACTION_DIGITS: usize = 12;

impl Decimal {
    /// Reads a number at the start of `text`; gives it and what follows.
    pub(crate) fn take(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = match number.split_once('.') {
            Some((_, "")) => return None,
            Some((whole, fraction)) => (whole, fraction),
            None => (number, ""),
        };
        if whole.is_empty() || fraction.len() > MAX_FRACTION_DIGITS || fraction.contains('.') {
            return None;
        }
        let digits = u32::try_from(fraction.len()).ok()?;
        let fraction = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        Some((Self { whole: whole.parse().ok()?, fraction, digits }, rest))
    }

    pub(crate) fn times(self, unit: u64) -> Scaled {
        let unit = u128::from(unit);
        let parts = 10_u128.pow(self.digits);
        let scaled = u128::from(self.fraction) * unit;
        let total = u128::from(self.whole) * unit + scaled / parts;
        match (u64::try_from(total), scaled % parts) {
            (Ok(total), 0) => Scaled::Exact(total),
            (Ok(total), _) => Scaled::Cut(total),
            (Err(_), _) => Scaled::TooLarge,
        }
    }
}
