//! The attack cases and their verdicts.

use std::fmt;

use belljar_spec::Clause;
use serde::Serialize;

use crate::testbed::{TestBed, TestBedError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Medium,
    High,
    Critical,
}

/// One attack. The name is stable: users write it into scripts.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// What the attacker does, as a short phrase.
    pub attack: &'static str,
    pub clause: Clause,
    pub severity: Severity,
    pub(crate) run: fn(&TestBed) -> Result<Verdict, TestBedError>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Refused inside, and the control succeeded.
    Held { how: String },
    /// The attack worked.
    Broke { how: String },
    /// The attack works, and no clause promises to prevent it.
    NotPromised { why: String },
    /// There is nothing to attack on this host or backend.
    NotTried { why: String },
    /// Refused inside, but the control was refused too, so nothing is proved.
    NoControl { why: String },
    /// The case could not run.
    Failed { why: String },
}

impl Verdict {
    pub fn held(how: impl Into<String>) -> Self {
        Self::Held { how: how.into() }
    }

    pub fn broke(how: impl Into<String>) -> Self {
        Self::Broke { how: how.into() }
    }

    pub fn not_tried(why: impl Into<String>) -> Self {
        Self::NotTried { why: why.into() }
    }

    pub fn no_control(why: impl Into<String>) -> Self {
        Self::NoControl { why: why.into() }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Held { .. } => "held",
            Self::Broke { .. } => "broke",
            Self::NotPromised { .. } => "works, and is not promised against",
            Self::NotTried { .. } => "could not be tried",
            Self::NoControl { .. } => "refused, without a control",
            Self::Failed { .. } => "the case failed",
        }
    }

    pub fn why(&self) -> &str {
        match self {
            Self::Held { how } | Self::Broke { how } => how,
            Self::NotPromised { why }
            | Self::NotTried { why }
            | Self::NoControl { why }
            | Self::Failed { why } => why,
        }
    }

    pub fn has_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }

    pub fn has_broken(&self) -> bool {
        matches!(self, Self::Broke { .. })
    }

    /// A verdict that a test suite accepts: the attack was refused with proof, there was nothing to
    /// attack, or nothing was promised.
    pub fn is_sound(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::NotPromised { .. } | Self::NotTried { .. })
    }
}
