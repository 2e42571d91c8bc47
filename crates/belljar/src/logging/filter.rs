//! Parses `BELLJAR_LOG`: a level, or levels of targets.
//!
//! Only Belljar's own crates can be named: what libraries log may hold requests, and with them secrets.

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// In front of every target of ours; as a target it means all of them.
const ALL: &str = "belljar";
const CRATES: [&str; 5] =
    [ALL, "belljar_backend", "belljar_egress", "belljar_run", "belljar_workspace"];
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    #[error(
        "\"{0}\" is no level; it is a level (off, error, warn, info, debug or trace) or TARGET=LEVEL,..."
    )]
    Level(String),
    #[error("\"{0}\" is no target; targets are {known}, and their modules: belljar_run::config", known = CRATES.join(", "))]
    Target(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(Vec<(String, LevelFilter)>);

impl LogFilter {
    /// Nothing would ever be logged.
    pub(crate) fn is_off(&self) -> bool {
        self.0.iter().all(|(_, level)| *level == LevelFilter::OFF)
    }

    pub(crate) fn targets(&self) -> Targets {
        Targets::new().with_targets(self.0.iter().cloned())
    }
}

impl FromStr for LogFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        text.split(',').map(|part| directive(part.trim())).collect::<Result<_, _>>().map(Self)
    }
}

fn directive(text: &str) -> Result<(String, LevelFilter), FilterError> {
    let Some((target, level_name)) = text.split_once('=') else {
        return Ok((ALL.to_owned(), level(text)?));
    };
    let target = target.trim();
    let krate = target.split("::").next().unwrap_or_default();
    if !CRATES.contains(&krate) {
        return Err(FilterError::Target(belljar::spec::text::escape(target.as_bytes())));
    }
    Ok((target.to_owned(), level(level_name.trim())?))
}

fn level(text: &str) -> Result<LevelFilter, FilterError> {
    let found = LEVELS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found
        .map(|(_, level)| *level)
        .ok_or_else(|| FilterError::Level(belljar::spec::text::escape(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter as Level;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, Level)> {
        text.parse::<LogFilter>().unwrap().0
    }

    #[test]
    fn levels_and_targets() {
        assert_eq!(parsed("debug"), [("belljar".to_owned(), Level::DEBUG)]);
        assert_eq!(parsed("TRACE"), [("belljar".to_owned(), Level::TRACE)]);
        let two = [
            ("belljar_egress".to_owned(), Level::TRACE),
            ("belljar_run::config".to_owned(), Level::DEBUG),
        ];
        assert_eq!(parsed("belljar_egress=trace, belljar_run::config=debug"), two);
        let targets = "debug,belljar_egress=off".parse::<LogFilter>().unwrap().targets();
        assert!(targets.would_enable("belljar_run::run", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("belljar_run::run", &tracing::Level::TRACE));
        assert!(!targets.would_enable("belljar_egress::proxy", &tracing::Level::ERROR));
        assert!(!targets.would_enable("hyper::client", &tracing::Level::ERROR));
    }

    #[test]
    fn nothing_and_off_are_off() {
        for text in ["", " ", "off", "belljar_run=off,off"] {
            assert!(text.parse::<LogFilter>().unwrap().is_off(), "{text:?}");
        }
        assert!(!"off,belljar_run=warn".parse::<LogFilter>().unwrap().is_off());
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_accepted() {
        for (text, want) in [
            ("verbose", "\"verbose\" is no level; it is a level (off, error,"),
            ("3", "\"3\" is no level"),
            ("debug,", "\"\" is no level"),
            ("belljar_run=loud", "\"loud\" is no level"),
            ("hyper=debug", "\"hyper\" is no target; targets are belljar, belljar_backend,"),
            ("belljar_runs=debug", "\"belljar_runs\" is no target"),
            ("=debug", "\"\" is no target"),
            ("\u{1b}[31m", "\"\\u{1b}[31m\" is no level"),
        ] {
            let error = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }
}
