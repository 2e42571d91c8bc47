//! The adapter for Claude Code: `claude -p --output-format stream-json --verbose`.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::resolve::HOME_INSIDE;
use belljar_spec::{AgentEvent, AgentResult, AgentSpec, Budget, OsText, Role, TokenUsage};
use serde_json::Value;

use super::json::{self, Object, list, nested, number, object, some_text, text};
use super::usage_meter::{UsageMeter, money};
use super::{
    Adapter, AgentCommand, Argv, Preset, Reader, Remaining, SessionTotals, SessionUse, Understood,
    UsageReporting, is_session_name, session,
};

const HOST: &str = "api.anthropic.com";
/// Content blocks of one line; further ones are ignored.
const MAX_BLOCKS: usize = 1000;

#[derive(Debug)]
pub(super) struct Claude;

impl Adapter for Claude {
    fn preset(&self) -> Preset {
        let secret = |env: &str| Secret { env: env.into(), host: HOST.into(), ..Secret::default() };
        let bearer = |env: &str| Secret { bearer: Some(true), ..secret(env) };
        Preset {
            hosts: vec![format!("{HOST}:443")],
            secrets: vec![
                Secret { header: Some("x-api-key".into()), ..secret("ANTHROPIC_API_KEY") },
                bearer("CLAUDE_CODE_OAUTH_TOKEN"),
                bearer("ANTHROPIC_AUTH_TOKEN"),
            ],
            env: BTreeMap::from([
                ("CLAUDE_CONFIG_DIR".into(), format!("{HOME_INSIDE}/.claude")),
                ("DISABLE_AUTOUPDATER".into(), "1".into()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC".into(), "1".into()),
            ]),
            directories: vec![".claude"],
            login_files: vec![".claude/.credentials.json"],
            login_hosts: vec!["platform.claude.com:443".into(), "console.anthropic.com:443".into()],
            login_env: BTreeMap::new(),
            terminal_login: None,
            // Its introduction ends the program unless hosts answer that a session needs for nothing else.
            terminal_settings: Some((
                ".claude/.claude.json",
                "{\"hasCompletedOnboarding\": true}\n",
            )),
            usage_reporting: UsageReporting::TokensAndCost,
        }
    }

    fn invocation(
        &self,
        spec: &AgentSpec,
        session: &SessionUse,
        remaining: Remaining,
    ) -> AgentCommand {
        let argv = Argv::of(&spec.program).add(&[
            "-p",
            "--output-format",
            "stream-json",
            "--verbose", // required with stream-json
        ]);
        let argv = match session {
            SessionUse::New { id } if is_session_name(id) => argv.add(&["--session-id", id]),
            SessionUse::Continue { id } if is_session_name(id) => argv.add(&["--resume", id]),
            SessionUse::Fork { id } if is_session_name(id) => {
                argv.add(&["--resume", id, "--fork-session"])
            }
            _ => argv,
        };
        let argv = permissions(argv, spec);
        let turns = remaining.turns.map(|turns| turns.to_string());
        let budget = remaining.cost.map(|cost| cost.dollars().to_string());
        let argv = argv
            .option("--model", spec.model.as_deref())
            .option("--max-turns", turns.as_deref())
            .option("--max-budget-usd", budget.as_deref());
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        argv.add(&args).with_prompt(&spec.prompt)
    }

    fn terminal_command(&self, spec: &AgentSpec) -> Option<Vec<OsText>> {
        let argv = permissions(Argv::of(&spec.program), spec);
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        Some(argv.option("--model", spec.model.as_deref()).add(&args).0)
    }

    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader> {
        Box::new(ClaudeLines { meter: UsageMeter::after(before) })
    }

    fn budget_of(&self, code: &str) -> Option<Budget> {
        match code {
            "error_max_turns" => Some(Budget::Turns),
            "error_max_budget_usd" => Some(Budget::Cost),
            _ => None,
        }
    }
}

fn permissions(argv: Argv, spec: &AgentSpec) -> Argv {
    match spec.permissions {
        Permissions::Bypass => argv.add(&["--dangerously-skip-permissions"]),
        Permissions::AcceptEdits => argv.add(&["--permission-mode", "acceptEdits"]),
        Permissions::Ask => argv.add(&["--permission-mode", "default"]),
    }
}

#[derive(Debug)]
struct ClaudeLines {
    meter: UsageMeter,
}

impl Reader for ClaudeLines {
    fn line(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        match text(&line, "type") {
            "system" => system(&line, events),
            "assistant" => self.assistant(&line, events),
            "user" => user(&line, events),
            "result" => self.result(&line, events),
            "rate_limit_event" => rate_limit(&line, events),
            // Other types exist, and every version adds some.
            _ => {}
        }
        Understood::Yes
    }

    fn needs_result(&self) -> bool {
        true
    }

    fn turns(&self) -> u64 {
        self.meter.turns()
    }

    fn totals(&self) -> SessionTotals {
        self.meter.totals()
    }
}

impl ClaudeLines {
    fn assistant(&mut self, line: &Object, events: &mut Vec<AgentEvent>) {
        if let Some(error) = some_text(line, "error") {
            events.push(AgentEvent::Error { message: error });
        }
        let Some(message) = nested(line, "message") else { return };
        for block in list(message, "content").iter().take(MAX_BLOCKS) {
            events.extend(block.as_object().and_then(message_part));
        }
        let id = text(message, "id");
        let main = line.get("parent_tool_use_id").is_none_or(Value::is_null);
        // Every part of a message is a separate line with the same id.
        if main && !self.meter.knows(id) {
            self.meter.turn();
        }
        let used = nested(message, "usage").map(usage).unwrap_or_default();
        self.meter.message(id, used, events);
    }

    /// `is_error` decides: if the service cannot be reached, the subtype is still `success`. But a subtype such as
    /// `error_max_turns` is an error in versions that report `is_error: false` with it.
    fn result(&mut self, line: &Object, events: &mut Vec<AgentEvent>) {
        let denied = list(line, "permission_denials");
        if !denied.is_empty() {
            let tools: Vec<String> = denied.iter().take(5).map(denial).collect();
            let message = format!("{} denied: {}", denied.len(), tools.join("; "));
            events.push(AgentEvent::Error { message });
        }
        let cost_usd = money(line.get("total_cost_usd"), events);
        let used = nested(line, "usage").map(usage).unwrap_or_default();
        self.meter.total(TokenUsage { cost_usd, ..used }, number(line, "num_turns"), events);
        let word = some_text(line, "subtype");
        let is_error = match line.get("is_error").and_then(Value::as_bool) {
            Some(is_error) => {
                is_error || word.as_deref().is_some_and(|word| word.starts_with("error_"))
            }
            None => word.as_deref() != Some("success"),
        };
        let text = some_text(line, "result").or_else(|| {
            let errors = json::content(line.get("errors"));
            (!errors.is_empty()).then_some(errors)
        });
        let turns = Some(self.meter.turns());
        events.push(AgentEvent::Result(AgentResult { is_error, code: word, text, turns }));
    }
}

fn system(line: &Object, events: &mut Vec<AgentEvent>) {
    match text(line, "subtype") {
        "init" => events.push(session(text(line, "session_id"), some_text(line, "model"))),
        "api_retry" => {
            let error = some_text(line, "error").unwrap_or_else(|| "no response".into());
            let status = match number(line, "error_status") {
                0 => String::new(),
                status => format!(" (status {status})"),
            };
            let (attempt, most) = (number(line, "attempt"), number(line, "max_retries"));
            let message =
                format!("the service failed: {error}{status}; attempt {attempt} of {most}");
            events.push(AgentEvent::Error { message });
        }
        "compact_boundary" => {
            let text = "the conversation was compacted".to_owned();
            events.push(AgentEvent::Message { role: Role::System, text });
        }
        "task_notification" => {
            if let Some(text) = some_text(line, "summary") {
                events.push(AgentEvent::Message { role: Role::System, text });
            }
        }
        _ => {}
    }
}

fn user(line: &Object, events: &mut Vec<AgentEvent>) {
    let Some(message) = nested(line, "message") else { return };
    if let Some(text) = some_text(message, "content") {
        events.push(AgentEvent::Message { role: Role::User, text });
    }
    for block in list(message, "content").iter().take(MAX_BLOCKS) {
        let Some(block) = block.as_object() else { continue };
        match text(block, "type") {
            "text" => {
                let text = text(block, "text").to_owned();
                events.push(AgentEvent::Message { role: Role::User, text });
            }
            _ => events.extend(message_part(block)),
        }
    }
}

/// One part of a message.
fn message_part(block: &Object) -> Option<AgentEvent> {
    match text(block, "type") {
        "text" => {
            let text = some_text(block, "text")?;
            Some(AgentEvent::Message { role: Role::Assistant, text })
        }
        "thinking" => {
            let text = some_text(block, "thinking")?;
            Some(AgentEvent::Message { role: Role::Thinking, text })
        }
        "tool_use" | "server_tool_use" | "mcp_tool_use" => Some(AgentEvent::ToolCall {
            id: some_text(block, "id"),
            tool: text(block, "name").to_owned(),
            input: block.get("input").map(json::input).unwrap_or_default(),
        }),
        kind if kind.ends_with("tool_result") => Some(AgentEvent::ToolResult {
            id: some_text(block, "tool_use_id"),
            is_error: block.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            text: json::content(block.get("content")),
        }),
        _ => None,
    }
}

fn rate_limit(line: &Object, events: &mut Vec<AgentEvent>) {
    let Some(info) = nested(line, "rate_limit_info") else { return };
    match text(info, "status") {
        "" | "allowed" => {}
        status => {
            let message = format!("rate limit of the service: {status}");
            events.push(AgentEvent::Error { message });
        }
    }
}

fn denial(denied: &Value) -> String {
    let Some(denied) = denied.as_object() else { return json::compact(denied) };
    let input = denied.get("tool_input").map(json::input).unwrap_or_default();
    let mut shown = format!("{} {input}", text(denied, "tool_name"));
    if let Some((end, _)) = shown.char_indices().nth(200) {
        shown.truncate(end);
    }
    shown
}

/// Cache reads and writes are input too; the service counts them separately.
fn usage(usage: &Object) -> TokenUsage {
    let cached_tokens = number(usage, "cache_read_input_tokens");
    let input = number(usage, "input_tokens")
        .saturating_add(cached_tokens)
        .saturating_add(number(usage, "cache_creation_input_tokens"));
    TokenUsage {
        input_tokens: input,
        output_tokens: number(usage, "output_tokens"),
        cached_tokens,
        ..TokenUsage::default()
    }
}
