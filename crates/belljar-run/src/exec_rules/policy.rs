//! The command policy of one run: decides whether a command is started, warned about or refused.

use std::cell::OnceCell;

use belljar_spec::manifest::CommandMode;
use belljar_spec::{CommandPolicy, OsText};

use super::{RuleError, RuleSet, RuleVerdict, UNDECIDED, judge_process};

/// What happens to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleDecision {
    Allow,
    /// Recorded, and started.
    Warn(BrokenRule),
    Refuse(BrokenRule),
}

/// The rule that a command breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokenRule {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) piece: String,
}

#[derive(Debug)]
pub(crate) struct ExecRules {
    policy: CommandPolicy,
    /// Made for the first command that is checked: most runs have none.
    rules: OnceCell<Result<RuleSet, RuleError>>,
}

impl ExecRules {
    pub(crate) fn new(policy: &CommandPolicy) -> Self {
        Self { policy: policy.clone(), rules: OnceCell::new() }
    }

    pub(crate) fn check(&self, argv: &[OsText]) -> RuleDecision {
        if self.policy.mode == CommandMode::Off {
            return RuleDecision::Allow;
        }
        let RuleVerdict::Denied { rule, why, piece } = self.judge(argv) else {
            return RuleDecision::Allow;
        };
        let broken = BrokenRule { rule, why, piece };
        match self.policy.mode {
            CommandMode::Strict => RuleDecision::Refuse(broken),
            CommandMode::Warn | CommandMode::Off => RuleDecision::Warn(broken),
        }
    }

    fn judge(&self, argv: &[OsText]) -> RuleVerdict {
        let undecided = |why: String| {
            let piece = argv.first().map_or(String::new(), OsText::to_string);
            RuleVerdict::Denied { rule: UNDECIDED.to_owned(), why, piece }
        };
        match self.rules.get_or_init(|| RuleSet::compile(&self.policy)) {
            Err(error) => undecided(error.to_string()),
            Ok(rules) if !RuleSet::needs_grammar(argv) => rules.judge(argv),
            Ok(_) => judge_process::judge(&self.policy, argv)
                .unwrap_or_else(|| undecided("the script could not be judged in time".to_owned())),
        }
    }
}
