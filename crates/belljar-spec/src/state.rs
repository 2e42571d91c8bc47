//! The state of a run, and which operations each state allows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Only ever goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Resolved and recorded; nothing has been started yet.
    Planned,
    /// The sandbox is being built and looked over.
    Starting,
    /// Something runs in it, or may.
    Running,
    /// Was requested to end; nothing new begins.
    Stopping,
    Stopped,
}

impl RunState {
    pub const ALL: &'static [RunState] =
        &[Self::Planned, Self::Starting, Self::Running, Self::Stopping, Self::Stopped];

    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    pub fn is_live(self) -> bool {
        self != Self::Stopped
    }

    /// Commands, copies and terminals.
    pub fn allows_exec(self) -> bool {
        self == Self::Running
    }

    pub fn allows_stop(self) -> bool {
        matches!(self, Self::Planned | Self::Starting | Self::Running)
    }

    pub fn allows_removal(self) -> bool {
        self == Self::Stopped
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for RunState {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|state| state.name() == text).ok_or(())
    }
}
