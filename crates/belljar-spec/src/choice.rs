//! Which backends are tried for a run, in which order, and the report on those that were skipped.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::backends::{BackendChoice, BackendName};
use crate::id::RunId;

/// A backend that was skipped. It is reported, and recorded in the run that was started instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedBackend {
    pub backend: BackendName,
    pub why: String,
    /// What would change that, where there is such a thing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<String>,
    /// The record of the attempt, where there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<RunId>,
}

impl fmt::Display for SkippedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.why)?;
        match &self.fix {
            Some(fix) => write!(f, " (fix: {fix})"),
            None => Ok(()),
        }
    }
}

/// The operator's choice, then its fallbacks, each once.
pub fn candidates(choice: BackendChoice, fallback: &[BackendName]) -> Vec<BackendName> {
    let first: Vec<BackendName> = match choice.named() {
        Some(named) => vec![named],
        None => BackendName::auto().collect(),
    };
    let mut all: Vec<BackendName> = Vec::new();
    for name in first.iter().chain(fallback) {
        if !all.contains(name) {
            all.push(*name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use BackendName::{Docker, Host, Jail, Podman};

    #[test]
    fn the_operators_order_is_kept_and_nothing_comes_twice() {
        for (choice, fallback, tried) in [
            (BackendChoice::Auto, &[][..], &[Jail, Docker, Podman][..]),
            (BackendChoice::Auto, &[Podman, Host, Jail], &[Jail, Docker, Podman, Host]),
            (BackendChoice::Podman, &[Docker, Jail], &[Podman, Docker, Jail]),
            (BackendChoice::Jail, &[Jail, Jail], &[Jail]),
            (BackendChoice::Host, &[], &[Host]),
        ] {
            assert_eq!(candidates(choice, fallback), tried, "{choice:?} {fallback:?}");
        }
    }

    #[test]
    fn the_host_comes_only_where_it_is_written() {
        for choice in BackendChoice::ALL.iter().filter(|choice| **choice != BackendChoice::Host) {
            assert!(!candidates(*choice, &[Jail, Docker, Podman]).contains(&Host), "{choice:?}");
        }
    }
}
