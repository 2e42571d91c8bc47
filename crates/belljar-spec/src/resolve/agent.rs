//! The agent of a run, from the settings and what was found on the host.

use super::{MainCommand, Request, ResolveError};
use crate::agent::{
    AgentSpec, AgentWork, CHECK_TIMEOUT, LoopSpec, Money, SETUP_TIMEOUT, SetupSpec, Until,
};
use crate::egress::SecretSpec;
use crate::human_duration::HumanDuration;
use crate::layers::{Origin, Settings};
use crate::manifest::{AgentKind, Auth, Loop, Permissions, SessionMode, Usd};
use crate::runspec::Mount;
use crate::text::OsText;

/// A longer text is not a prompt.
pub const MAX_PROMPT: usize = 1 << 20;

/// What the host has of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundAgent {
    /// Its program, as it is called inside.
    pub program: Vec<OsText>,
    /// The content of `agent.prompt_file`.
    pub prompt_file: Option<String>,
    /// The secrets of `agent.auth = "login"`.
    pub login: Vec<SecretSpec>,
}

/// Refuses a prompt that the agent cannot work with.
pub fn check_prompt(kind: AgentKind, prompt: &str) -> Result<(), ResolveError> {
    if prompt.trim().is_empty() && kind != AgentKind::Command {
        return Err(wrong(
            "agent.prompt",
            "the agent has no prompt; use --prompt TEXT, --prompt-file FILE, or the manifest's agent.prompt; \
             -t opens the agent in the terminal instead",
        ));
    }
    if prompt.len() > MAX_PROMPT {
        let why = format!("is {} bytes long; the maximum is 1 MiB", prompt.len());
        return Err(wrong("agent.prompt", &why));
    }
    if prompt.contains('\0') {
        return Err(wrong("agent.prompt", "contains a NUL byte, which is not allowed"));
    }
    Ok(())
}

/// `None` for a run with a command, and where no agent is named.
pub(super) fn work(
    settings: &Settings,
    request: &Request,
) -> Result<Option<Box<AgentWork>>, ResolveError> {
    let values = &settings.values;
    let (Some(kind), MainCommand::Agent) = (values.agent.kind, &request.command) else {
        return Ok(None);
    };
    let found = request.agent.as_ref();
    let program = match (kind, &values.agent.command) {
        (AgentKind::Command, Some(command)) => arguments(command, "agent.command")?,
        (AgentKind::Command, None) => {
            let why = "the kind \"command\" needs a command: agent.command = [\"program\", …] in the manifest";
            return Err(wrong("agent.command", why));
        }
        _ => program(kind, found),
    };
    let prompt = prompt(settings, found)?;
    check_prompt(kind, &prompt)?;
    let agent = AgentSpec {
        format: values.agent.format.filter(|_| kind == AgentKind::Command),
        prompt,
        max_turns: values.agent.max_turns.map(u64::from),
        max_cost: money(values.agent.max_cost_usd, "agent.max_cost_usd")?,
        max_tokens: values.agent.max_tokens,
        ..plain_agent(settings, kind, program)
    };
    let setup = match &values.setup.command {
        Some(command) => Some(SetupSpec {
            command: arguments(command, "setup.command")?,
            network: super::network::setup_rules(settings)?,
            timeout: values.setup.timeout.map_or(SETUP_TIMEOUT, HumanDuration::as_duration),
        }),
        None if values.setup.network.as_ref().is_some_and(|hosts| !hosts.is_empty()) => {
            return Err(wrong("setup.network", "there is no setup.command to use it"));
        }
        None if values.setup.timeout.is_some() => {
            return Err(wrong("setup.timeout", "there is no setup.command to limit"));
        }
        None => None,
    };
    let is_loop = is_loop(settings);
    Ok(Some(Box::new(AgentWork { agent, setup, repeat: repeat(&values.r#loop, is_loop)? })))
}

/// The agent that has the terminal. It is asked by a person: there is no prompt, no loop and no budget.
pub(super) fn in_terminal(
    settings: &Settings,
    request: &Request,
) -> Result<Option<Box<AgentSpec>>, ResolveError> {
    let (Some(kind), MainCommand::AgentTerminal) = (settings.values.agent.kind, &request.command)
    else {
        return Ok(None);
    };
    if kind == AgentKind::Command {
        let why = "an agent of the kind \"command\" has no terminal interface that belljar knows; \
                   name the command itself: belljar run -t COMMAND";
        return Err(wrong("agent.kind", why));
    }
    let program = program(kind, request.agent.as_ref());
    Ok(Some(Box::new(plain_agent(settings, kind, program))))
}

fn program(kind: AgentKind, found: Option<&FoundAgent>) -> Vec<OsText> {
    match found {
        Some(found) if !found.program.is_empty() => found.program.clone(),
        _ => vec![OsText::from(kind.name())],
    }
}

/// What every use of an agent needs.
fn plain_agent(settings: &Settings, kind: AgentKind, program: Vec<OsText>) -> AgentSpec {
    let agent = &settings.values.agent;
    AgentSpec {
        kind,
        program,
        format: None,
        prompt: String::new(),
        model: agent.model.clone(),
        args: agent.args.clone().unwrap_or_default(),
        permissions: agent.permissions.unwrap_or(Permissions::Bypass),
        auth: agent.auth.unwrap_or(Auth::Secret),
        max_turns: None,
        max_cost: None,
        max_tokens: None,
    }
}

/// What is waited for must be able to come.
pub(super) fn check_until(
    work: Option<&AgentWork>,
    workspace: Option<&Mount>,
) -> Result<(), ResolveError> {
    let until = work.and_then(|work| work.repeat.until.as_ref());
    match (until, workspace) {
        (Some(Until::File { .. }), None) => Err(wrong(
            "loop.until.file",
            "there is no workspace to hold the file; use until.command or until.says",
        )),
        _ => Ok(()),
    }
}

fn prompt(settings: &Settings, found: Option<&FoundAgent>) -> Result<String, ResolveError> {
    let agent = &settings.values.agent;
    let from_file = found.and_then(|found| found.prompt_file.clone());
    let rank = |key: &str| settings.origin(key).map_or(0, crate::layers::Origin::rank);
    // One layer cannot set both; of two layers the higher one wins.
    let file_wins = rank("agent.prompt_file") > rank("agent.prompt");
    Ok(match (&agent.prompt, from_file) {
        (Some(_), Some(file)) if file_wins => file,
        (Some(prompt), _) => prompt.clone(),
        (None, Some(file)) => file,
        (None, None) => String::new(),
    })
}

/// It is a loop as soon as a setting makes it one. Budgets in a manifest's `[loop]` do; a budget on the command line,
/// or for all runs of this user or this machine, also applies to a single run.
fn is_loop(settings: &Settings) -> bool {
    let values = &settings.values.r#loop;
    let is_in_manifest =
        |key: &str| matches!(settings.origin(&format!("loop.{key}")), Some(Origin::Manifest(_)));
    values.until.is_some()
        || values.max_iterations.is_some()
        || values.max_time.is_some()
        || values.max_unchanged.is_some()
        || values.max_failures.is_some()
        || values.pause.is_some()
        || values.backoff.is_some()
        || values.session.is_some()
        || ["max_cost_usd", "max_turns", "max_tokens"].into_iter().any(is_in_manifest)
}

fn repeat(settings: &Loop, is_loop: bool) -> Result<LoopSpec, ResolveError> {
    let once = LoopSpec::once();
    let budgets = LoopSpec {
        max_cost: money(settings.max_cost_usd, "loop.max_cost_usd")?,
        max_turns: settings.max_turns.map(u64::from),
        max_tokens: settings.max_tokens,
        checkpoints: settings.checkpoints.unwrap_or(once.checkpoints),
        ..once
    };
    if !is_loop {
        return Ok(budgets);
    }
    let until = settings.until.as_ref().map(|until| {
        Ok(match (&until.file, &until.command, &until.says) {
            (Some(file), _, _) => Until::File { path: file.clone() },
            (_, Some(command), _) => Until::Command {
                argv: arguments(command, "loop.until.command")?,
                timeout: until.timeout.map_or(CHECK_TIMEOUT, HumanDuration::as_duration),
            },
            (_, _, Some(phrase)) => Until::Says { phrase: phrase.clone() },
            (None, None, None) => return Err(wrong("loop.until", "is empty")),
        })
    });
    Ok(LoopSpec {
        until: until.transpose()?,
        max_iterations: settings.max_iterations,
        max_time: settings.max_time.map(HumanDuration::as_duration),
        max_unchanged: Some(settings.max_unchanged.unwrap_or(3)),
        max_failures: Some(settings.max_failures.unwrap_or(5)),
        pause: settings.pause.map(HumanDuration::as_duration).unwrap_or_default(),
        backoff: settings.backoff.map_or(budgets.backoff, HumanDuration::as_duration),
        session: settings.session.unwrap_or(SessionMode::Fresh),
        ..budgets
    })
}

/// An amount that cannot be represented is not a limit that could be enforced.
fn money(amount: Option<Usd>, key: &str) -> Result<Option<Money>, ResolveError> {
    let Some(Usd(dollars)) = amount else { return Ok(None) };
    match Money::from_dollars(dollars) {
        Some(money) => Ok(Some(money)),
        None => Err(wrong(key, &format!("{dollars} dollars is too large; write a smaller amount"))),
    }
}

fn arguments(command: &[String], key: &str) -> Result<Vec<OsText>, ResolveError> {
    if command.first().is_none_or(String::is_empty) {
        return Err(wrong(key, "is empty; write the program and its arguments"));
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return Err(wrong(key, "contains a NUL byte, which is not allowed in an argument"));
    }
    Ok(command.iter().map(|argument| OsText::from(argument.as_str())).collect())
}

fn wrong(key: &str, why: &str) -> ResolveError {
    ResolveError::Agent { key: key.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn an_amount_that_cannot_be_counted_is_no_missing_limit() {
        assert_eq!(money(None, "k"), Ok(None));
        assert_eq!(money(Some(Usd(2.5)), "k"), Ok(Some(Money::from_micros(2_500_000))));
        for dollars in [1e10, 1e300, f64::MAX] {
            let refused = money(Some(Usd(dollars)), "loop.max_cost_usd").unwrap_err().to_string();
            assert!(refused.starts_with("loop.max_cost_usd: "), "{refused}");
            let settings = Loop { max_cost_usd: Some(Usd(dollars)), ..Loop::default() };
            assert!(repeat(&settings, true).is_err(), "{dollars}");
        }
    }
}
