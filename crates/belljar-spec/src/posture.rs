//! The enforcement of each clause by a backend, and what that means for a launch.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::clause::Clause;

/// How well a backend enforces one clause. There is no value for "unknown": a backend that does not know
/// returns `Absent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Enforcement {
    Enforced {
        how: String,
    },
    Weaker {
        why: String,
        /// What the operator could do to make it enforced, where there is such a thing.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        fix: Option<String>,
    },
    Absent {
        why: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        fix: Option<String>,
    },
}

impl Enforcement {
    pub fn enforced(how: impl Into<String>) -> Self {
        Self::Enforced { how: how.into() }
    }

    pub fn weaker(why: impl Into<String>) -> Self {
        Self::Weaker { why: why.into(), fix: None }
    }

    pub fn absent(why: impl Into<String>) -> Self {
        Self::Absent { why: why.into(), fix: None }
    }

    /// Adds what the user can do about it; an enforced clause needs nothing.
    pub fn with_fix(mut self, the_fix: impl Into<String>) -> Self {
        match &mut self {
            Self::Enforced { .. } => {}
            Self::Weaker { fix, .. } | Self::Absent { fix, .. } => *fix = Some(the_fix.into()),
        }
        self
    }

    /// The same answer, with something more to know about it.
    pub fn and(mut self, more: &str) -> Self {
        match &mut self {
            Self::Enforced { how: text }
            | Self::Weaker { why: text, .. }
            | Self::Absent { why: text, .. } => {
                text.push_str("; ");
                text.push_str(more);
            }
        }
        self
    }

    pub fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforced { .. })
    }

    pub fn status(&self) -> &'static str {
        match self {
            Self::Enforced { .. } => "enforced",
            Self::Weaker { .. } => "weaker",
            Self::Absent { .. } => "absent",
        }
    }

    /// How it is enforced, or why it is not.
    pub fn reason(&self) -> &str {
        match self {
            Self::Enforced { how } => how,
            Self::Weaker { why, .. } | Self::Absent { why, .. } => why,
        }
    }

    pub fn fix(&self) -> Option<&str> {
        match self {
            Self::Enforced { .. } => None,
            Self::Weaker { fix, .. } | Self::Absent { fix, .. } => fix.as_deref(),
        }
    }
}

/// The operator's statement that a clause may be missing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiver {
    pub clause: Clause,
    pub reason: String,
}

/// One answer for every clause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Posture(BTreeMap<Clause, Enforcement>);

/// A required clause that is not enforced and not waived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmet {
    pub clause: Clause,
    pub enforcement: Enforcement,
}

impl Posture {
    /// Starts from "absent": a clause that a backend forgets is a clause that it does not hold.
    pub fn nothing_held(why: &str) -> Self {
        Self(Clause::ALL.iter().map(|clause| (*clause, Enforcement::absent(why))).collect())
    }

    pub fn set(&mut self, clause: Clause, enforcement: Enforcement) {
        self.0.insert(clause, enforcement);
    }

    pub fn get(&self, clause: Clause) -> &Enforcement {
        // A record of an older version may lack a clause that is newer than it.
        static UNANSWERED: std::sync::LazyLock<Enforcement> =
            std::sync::LazyLock::new(|| Enforcement::absent("the backend reported nothing"));
        self.0.get(&clause).unwrap_or(&UNANSWERED)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Clause, &Enforcement)> {
        Clause::ALL.iter().map(|clause| (*clause, self.get(*clause)))
    }

    pub fn not_enforced(&self) -> impl Iterator<Item = (Clause, &Enforcement)> {
        self.iter().filter(|(_, enforcement)| !enforcement.is_enforced())
    }

    /// The required clauses that stop a launch.
    pub fn unmet(&self, required: &BTreeSet<Clause>, waivers: &[Waiver]) -> Vec<Unmet> {
        let waived = |clause: Clause| waivers.iter().any(|waiver| waiver.clause == clause);
        required
            .iter()
            .filter(|clause| !self.get(**clause).is_enforced() && !waived(**clause))
            .map(|clause| Unmet { clause: *clause, enforcement: self.get(*clause).clone() })
            .collect()
    }
}
