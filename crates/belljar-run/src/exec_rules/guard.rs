//! The rules of one run, as its supervisor asks them.

use belljar_spec::manifest::CommandMode;
use belljar_spec::{CommandPolicy, OsText};

use super::{RuleError, Rules, UNDECIDED, Verdict, apart};

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Started,
    /// It is told of, and started.
    Warned(Against),
    Refused(Against),
}

/// What a command is against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Against {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) piece: String,
}

#[derive(Debug)]
pub(crate) struct ExecRules {
    policy: CommandPolicy,
    rules: Result<Rules, RuleError>,
}

impl ExecRules {
    pub(crate) fn new(policy: &CommandPolicy) -> Self {
        let rules = match policy.mode {
            CommandMode::Off => Ok(Rules::default()),
            CommandMode::Warn | CommandMode::Strict => Rules::compile(policy),
        };
        Self { policy: policy.clone(), rules }
    }

    pub(crate) fn ask(&self, argv: &[OsText]) -> Answer {
        if self.policy.mode == CommandMode::Off {
            return Answer::Started;
        }
        let Verdict::Denied { rule, why, piece } = self.judge(argv) else { return Answer::Started };
        let against = Against { rule, why, piece };
        match self.policy.mode {
            CommandMode::Strict => Answer::Refused(against),
            CommandMode::Warn | CommandMode::Off => Answer::Warned(against),
        }
    }

    fn judge(&self, argv: &[OsText]) -> Verdict {
        let undecided = |why: String| {
            let piece = argv.first().map_or(String::new(), OsText::to_string);
            Verdict::Denied { rule: UNDECIDED.to_owned(), why, piece }
        };
        match &self.rules {
            Err(error) => undecided(error.to_string()),
            Ok(rules) if !Rules::needs_grammar(argv) => rules.judge(argv),
            Ok(_) => apart::judged(&self.policy, argv)
                .unwrap_or_else(|| undecided("the script could not be read in time".to_owned())),
        }
    }
}
