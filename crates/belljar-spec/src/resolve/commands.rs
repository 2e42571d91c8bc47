//! Resolves the command rules.

use super::ResolveError;
use crate::commands::{CommandPolicy, RuleSpec};
use crate::layers::Settings;
use crate::manifest::CommandRule;

/// Of each list, and of each rule's examples.
const MAX_RULES: usize = 200;
const MAX_LENGTH: usize = 1000;

pub(super) fn policy(settings: &Settings) -> Result<CommandPolicy, ResolveError> {
    let commands = &settings.values.commands;
    Ok(CommandPolicy {
        mode: commands.mode.unwrap_or(CommandPolicy::default().mode),
        deny: rules("commands.deny", commands.deny.as_deref().unwrap_or_default())?,
        allow: rules("commands.allow", commands.allow.as_deref().unwrap_or_default())?,
    })
}

fn rules(key: &str, rules: &[CommandRule]) -> Result<Vec<RuleSpec>, ResolveError> {
    let wrong = |why: String| ResolveError::Commands { key: key.to_owned(), why };
    if rules.len() > MAX_RULES {
        return Err(wrong(format!("more than {MAX_RULES} rules")));
    }
    let rule = |rule: &CommandRule| {
        let CommandRule { rule, matches, no_match } = rule.clone();
        let all = || std::iter::once(&rule).chain(&matches).chain(&no_match);
        if matches.len() + no_match.len() > MAX_RULES || all().any(|text| text.len() > MAX_LENGTH) {
            return Err(wrong(format!(
                "a rule has at most {MAX_RULES} examples, and each text has at most {MAX_LENGTH} bytes"
            )));
        }
        Ok(RuleSpec { rule, matches, no_match })
    };
    rules.iter().map(rule).collect()
}
