//! `[agent]`, `[loop]`, `[setup]`, `[commands]`, `[service.*]`, `[retention]`: what runs, how often,
//! beside what, and how much of it is retained.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::node::{Data, Node, Problem};
use super::sandbox::Variables;
use super::scalars::{AgentKind, Auth, CommandMode, OutputFormat, Permissions, SessionMode, Usd};
use super::table::{section, table};
use super::value::{HostPath, Value};
use crate::human_duration::HumanDuration;
use crate::text::OsText;

section! {
    /// The agent that a run without a command runs.
    pub struct Agent {
        /// Which agent.
        kind: Option<AgentKind>,
        /// Program and arguments, for the kind `command`.
        command: Option<Vec<String>>,
        /// Whose output the command prints, for the kind `command`. By default each line is a message.
        format: Option<OutputFormat>,
        /// Where the agent's program is: a path of the host, or "image" for the one inside. By default it is searched for.
        program: Option<OsText>,
        /// The agent's instructions.
        prompt: Option<String>,
        /// A file with the agent's instructions.
        prompt_file: Option<HostPath>,
        /// The model it uses.
        model: Option<String>,
        /// Further arguments of the agent's program.
        args: Option<Vec<String>>,
        /// What it may do without asking.
        permissions: Option<Permissions>,
        /// How it logs in.
        auth: Option<Auth>,
        /// Turns of one iteration.
        max_turns: Option<u32>,
        /// Cost of one iteration.
        max_cost_usd: Option<Usd>,
        /// Tokens of one iteration.
        max_tokens: Option<u64>,
    }
    check check_agent;
}

fn check_agent(agent: &Agent) -> Result<(), String> {
    if agent.prompt.is_some() && agent.prompt_file.is_some() {
        return Err("prompt and prompt_file are both set; remove one of them".into());
    }
    if agent.format.is_some() && agent.kind.is_some_and(|kind| kind != AgentKind::Command) {
        return Err("format is for the kind \"command\"; every other agent has its own".into());
    }
    match &agent.command {
        Some(command) if command.is_empty() => {
            Err("command is empty; write the program and its arguments".into())
        }
        _ => Ok(()),
    }
}

section! {
    /// Runs the agent again and again, until one of these holds.
    pub struct Loop {
        /// When the work is done.
        until: Option<Until>,
        /// Iterations; 0 runs none.
        max_iterations: Option<u32>,
        /// Time of the whole loop.
        max_time: Option<HumanDuration>,
        /// Cost of the whole loop.
        max_cost_usd: Option<Usd>,
        /// Turns of the whole loop.
        max_turns: Option<u32>,
        /// Tokens of the whole loop.
        max_tokens: Option<u64>,
        /// Iterations in a row that change nothing.
        max_unchanged: Option<u32>,
        /// Failures in a row.
        max_failures: Option<u32>,
        /// Between two iterations.
        pause: Option<HumanDuration>,
        /// After a failure; doubles with each one in a row.
        backoff: Option<HumanDuration>,
        /// What the agent remembers of the iteration before.
        session: Option<SessionMode>,
        /// How many checkpoints are kept, the newest ones.
        checkpoints: Option<u32>,
    }
    check check_loop;
}

fn check_loop(settings: &Loop) -> Result<(), String> {
    let at_least_one = |key: &str, value: Option<u32>, why: &str| match value {
        Some(0) => Err(format!("{key} = 0 {why}; the minimum is 1")),
        _ => Ok(()),
    };
    at_least_one("checkpoints", settings.checkpoints, "would leave nothing to resume from")?;
    at_least_one("max_unchanged", settings.max_unchanged, "would end the loop before it begins")?;
    at_least_one("max_failures", settings.max_failures, "would end the loop before it begins")
}

table! {
    /// What means that the work is done; one of these.
    pub struct Until {
        /// A file in the workspace exists.
        file: Option<OsText>,
        /// A command, run inside, succeeds.
        command: Option<Vec<String>>,
        /// The agent's final message contains this.
        says: Option<String>,
        /// How long the command may take.
        timeout: Option<HumanDuration>,
    }
    check check_until;
}

fn check_until(until: &Until) -> Result<(), String> {
    let set = [until.file.is_some(), until.command.is_some(), until.says.is_some()];
    if set.iter().filter(|set| **set).count() != 1 {
        return Err("until needs exactly one of file, command, says".into());
    }
    if until.says.as_ref().is_some_and(|phrase| phrase.trim().is_empty()) {
        return Err("says is empty, and every message contains that; write the phrase".into());
    }
    if until.timeout.is_some() && until.command.is_none() {
        return Err("timeout limits a command, and there is no command".into());
    }
    no_zero(until.timeout)?;
    match &until.file {
        Some(file) if crate::paths::inner(file.as_path()).is_none() => {
            Err(format!("the file \"{file}\" must be in the workspace: relative, without \"..\""))
        }
        _ => Ok(()),
    }
}

section! {
    /// Runs once before the agent in the same sandbox, with a separate allow-list.
    pub struct Setup {
        /// Program and arguments.
        command: Option<Vec<String>>,
        /// Hosts that it, and only it, can reach.
        network: Option<Vec<String>>,
        /// How long it may take.
        timeout: Option<HumanDuration>,
    }
    check check_setup;
}

fn check_setup(setup: &Setup) -> Result<(), String> {
    no_zero(setup.timeout)
}

fn no_zero(timeout: Option<HumanDuration>) -> Result<(), String> {
    match timeout {
        Some(timeout) if timeout.is_zero() => {
            Err("timeout is 0; leave it out or write a longer one".into())
        }
        _ => Ok(()),
    }
}

section! {
    /// Rules on commands: a second layer, never the boundary.
    pub struct Commands {
        /// What happens to a denied command.
        mode: Option<CommandMode>,
        /// Rules that deny, beyond the built-in ones.
        deny: Option<Vec<CommandRule>>,
        /// Rules that allow what another one denies.
        allow: Option<Vec<CommandRule>>,
    }
}

/// A rule, alone or with examples that are checked when it is loaded.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CommandRule {
    pub rule: String,
    pub matches: Vec<String>,
    pub no_match: Vec<String>,
}

table! {
    /// A rule with examples.
    struct CommandRuleTable {
        /// The rule.
        rule: String,
        /// Commands that it must match.
        r#match: Option<Vec<String>>,
        /// Commands that it must not match.
        no_match: Option<Vec<String>>,
    }
}

impl Value for CommandRule {
    fn read(node: &Node) -> Result<Self, Problem> {
        if matches!(node.data, Data::Text(_)) {
            return Ok(Self { rule: String::read(node)?, ..Self::default() });
        }
        let CommandRuleTable { rule, r#match, no_match } = CommandRuleTable::read(node)?;
        let (matches, no_match) = (r#match.unwrap_or_default(), no_match.unwrap_or_default());
        Ok(Self { rule, matches, no_match })
    }

    fn write(&self) -> Data {
        let filled = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
        match (filled(&self.matches), filled(&self.no_match)) {
            (None, None) => Data::Text(self.rule.clone()),
            (r#match, no_match) => {
                CommandRuleTable { rule: self.rule.clone(), r#match, no_match }.write()
            }
        }
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "type": "string" }, CommandRuleTable::schema()] })
    }
}

table! {
    /// A helper process in the sandbox's network, such as a database.
    pub struct Service {
        /// Program and arguments.
        command: Vec<String>,
        /// When it counts as ready.
        ready: Option<Ready>,
        /// Variables of the service.
        env: Option<Variables>,
        /// Where it starts.
        workdir: Option<OsText>,
    }
    check check_service;
}

fn check_service(service: &Service) -> Result<(), String> {
    if service.command.is_empty() {
        return Err("command is empty; write the program and its arguments".into());
    }
    Ok(())
}

table! {
    /// When a service counts as up: the port answers, or the command succeeds.
    pub struct Ready {
        /// A port on the sandbox's loopback.
        tcp: Option<u16>,
        /// A command, run inside.
        command: Option<Vec<String>>,
        /// How long that may take.
        within: Option<HumanDuration>,
    }
}

section! {
    /// How much of stopped runs is retained, per name.
    pub struct Retention {
        /// Sandboxes, with all files left in them. 0 keeps none.
        sandboxes: Option<u32>,
        /// Records. At least 1.
        runs: Option<u32>,
    }
    check check_retention;
}

fn check_retention(retention: &Retention) -> Result<(), String> {
    match retention.runs {
        Some(0) => {
            Err("runs = 0 would remove the record of a run as it ends; the minimum is 1".into())
        }
        _ => Ok(()),
    }
}

/// Services by name.
pub type Services = BTreeMap<String, Service>;
