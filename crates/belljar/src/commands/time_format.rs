//! Parses and formats times and durations.

use belljar::spec::HumanDuration;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

#[derive(Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a time; expected a span (10m), or a time such as 2026-01-31T12:00:00Z (UTC without a zone)"
)]
pub(super) struct BadTime(String);

/// A span before now, or a time.
pub(super) fn since(text: &str) -> Result<Timestamp, BadTime> {
    let bad = || BadTime(belljar::spec::text::escape(text.as_bytes()));
    if let Ok(span) = text.parse::<HumanDuration>() {
        let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let now = Timestamp::now().as_millisecond();
        let then = Timestamp::from_millisecond(now.saturating_sub(millis));
        return Ok(then.unwrap_or(Timestamp::MIN)); // before the earliest time
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let local: DateTime = text.parse().map_err(|_| bad())?;
    TimeZone::UTC.to_timestamp(local).map_err(|_| bad())
}

/// To the second, in UTC.
pub(super) fn shown(unix_millis: u64) -> String {
    let millis = i64::try_from(unix_millis).unwrap_or(i64::MAX);
    match Timestamp::from_millisecond(millis) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => "unknown time".to_owned(),
    }
}

/// The time since then, in the largest unit.
pub(super) fn age(unix_millis: u64) -> String {
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
    let seconds = now.saturating_sub(unix_millis) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_or_a_time() {
        let now = Timestamp::now().as_second();
        assert!((now - since("10m").unwrap().as_second() - 600).abs() <= 2);
        let noon = since("2026-01-31T12:00:00Z").unwrap();
        assert_eq!(since("2026-01-31 12:00:00").unwrap(), noon);
        assert_eq!(since("2026-01-31T14:00:00+02:00").unwrap(), noon);
        assert!(since("2026-01-31").is_ok());
        assert!(since("yesterday").is_err());
        assert!(since("99999999999d").is_ok(), "everything");
    }
}
