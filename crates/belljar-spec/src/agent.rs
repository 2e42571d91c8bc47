//! What an agent's run does, resolved: the agent, the set-up before it, and how often it runs.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::manifest::{AgentKind, Auth, OutputFormat, Permissions, SessionMode};
use crate::runspec::millis;
use crate::text::OsText;

/// What a run without a command does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentWork {
    pub agent: AgentSpec,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<SetupSpec>,
    #[serde(rename = "loop")]
    pub repeat: LoopSpec,
}

/// The agent itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub kind: AgentKind,
    /// The program inside, and what always comes first after it; for the kind `command` all of it.
    pub program: Vec<OsText>,
    /// Whose output a program of the kind `command` prints; without it each line is a message.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub format: Option<OutputFormat>,
    /// Not part of any argument list unless the adapter cannot pass it otherwise.
    pub prompt: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<String>,
    /// The operator's additional arguments, which come last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub args: Vec<String>,
    pub permissions: Permissions,
    pub auth: Auth,
    /// Of one iteration, like the two below.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_turns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_cost: Option<Money>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_tokens: Option<u64>,
}

/// Runs once, before the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupSpec {
    pub command: Vec<OsText>,
    /// Hosts that it alone can reach; shut when it has ended.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub network: Vec<String>,
    /// One that takes longer has failed.
    #[serde(with = "crate::runspec::millis_exact", default = "setup_timeout")]
    pub timeout: Duration,
}

/// The default timeout: a set-up, or a check of the loop, that hangs must not block the run all night.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(60 * 60);
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(30 * 60);

fn setup_timeout() -> Duration {
    SETUP_TIMEOUT
}

fn check_timeout() -> Duration {
    CHECK_TIMEOUT
}

/// How often the agent runs. `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopSpec {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<Until>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_iterations: Option<u32>,
    #[serde(with = "millis", skip_serializing_if = "Option::is_none", default)]
    pub max_time: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_cost: Option<Money>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_turns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_tokens: Option<u64>,
    /// Iterations in a row that changed nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_unchanged: Option<u32>,
    /// Failures in a row.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_failures: Option<u32>,
    #[serde(with = "crate::runspec::millis_exact")]
    pub pause: Duration,
    /// After a failure; doubles with each one in a row, up to [`MAX_BACKOFF`].
    #[serde(with = "crate::runspec::millis_exact")]
    pub backoff: Duration,
    pub session: SessionMode,
    /// How many checkpoints are retained, the newest ones. At least 1.
    pub checkpoints: u32,
}

/// No pause after failures is longer.
pub const MAX_BACKOFF: Duration = Duration::from_secs(15 * 60);

impl LoopSpec {
    /// Without `[loop]`: once.
    pub fn once() -> Self {
        Self {
            until: None,
            max_iterations: Some(1),
            max_time: None,
            max_cost: None,
            max_turns: None,
            max_tokens: None,
            max_unchanged: None,
            max_failures: None,
            pause: Duration::ZERO,
            backoff: Duration::from_secs(10),
            session: SessionMode::Fresh,
            checkpoints: 10,
        }
    }

    /// Whether it is one run of the agent and nothing more: then the run's exit code is the agent's. A loop of one
    /// iteration is still a loop, and counts failures as every loop does.
    pub fn is_once(&self) -> bool {
        self.max_iterations == Some(1) && self.until.is_none() && self.max_failures.is_none()
    }
}

/// What means that the work is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Until {
    /// A file in the workspace, by its path there. No link is followed.
    File { path: OsText },
    /// A command, run inside, that succeeds in time.
    Command {
        argv: Vec<OsText>,
        #[serde(with = "crate::runspec::millis_exact", default = "check_timeout")]
        timeout: Duration,
    },
    /// The agent's final message has this in it.
    Says { phrase: String },
}

/// US dollars, in millionths: sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(u64);

/// A larger sum could not be read back exactly.
const MAX_MICROS: u64 = 9_000_000_000_000_000;

impl Money {
    pub const ZERO: Self = Self(0);

    pub fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// `None` for what is not an amount: negative, infinite, or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let micros = (dollars * 1e6).round();
        // Up to 2^53 every whole number is exact as a float.
        let is_amount = dollars.is_finite() && (0.0..=MAX_MICROS as f64).contains(&micros);
        is_amount.then_some(Self(micros as u64))
    }

    pub fn micros(self) -> u64 {
        self.0
    }

    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e6
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0).min(MAX_MICROS))
    }

    /// Nothing, where `other` is more.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Money {
    /// `$0.42`, or with four places where two would show nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0 => "$0.00".to_owned(),
            1..10_000 => format!("${:.4}", self.dollars()),
            _ => format!("${:.2}", self.dollars()),
        };
        f.pad(&text)
    }
}

/// A number of dollars, as people and other programs write it.
impl Serialize for Money {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.dollars())
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(d)?;
        Self::from_dollars(dollars)
            .ok_or_else(|| serde::de::Error::custom(format!("{dollars} is not an amount of money")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn money_is_exact_and_never_negative() {
        let tenth = Money::from_dollars(0.1).unwrap();
        let sum = (0..10).fold(Money::ZERO, |sum, _| sum.plus(tenth));
        assert_eq!(sum, Money::from_dollars(1.0).unwrap());
        assert_eq!(tenth.minus(sum), Money::ZERO);
        for wrong in [-0.01, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(Money::from_dollars(wrong), None, "{wrong}");
        }
        let most = Money::from_dollars(9e9).unwrap();
        assert_eq!(most.plus(most), most);
        let text = serde_json::to_string(&most.plus(tenth)).unwrap();
        assert_eq!(serde_json::from_str::<Money>(&text).unwrap(), most);
        let text = serde_json::to_string(&Money::from_micros(123_456_789)).unwrap();
        assert_eq!(text, "123.456789");
        assert_eq!(serde_json::from_str::<Money>(&text).unwrap().micros(), 123_456_789);
        assert_eq!(
            [0, 420, 420_000].map(|micros| Money::from_micros(micros).to_string()),
            ["$0.00", "$0.0004", "$0.42"]
        );
    }
}
