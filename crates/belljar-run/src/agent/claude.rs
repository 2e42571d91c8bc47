//! Claude Code, as `claude -p --output-format stream-json --verbose` speaks.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::resolve::HOME_INSIDE;
use belljar_spec::{AgentNews, AgentResult, AgentSpec, Role, TokenUsage};
use serde_json::Value;

use super::json::{self, Object, below, list, number, object, some_text, text};
use super::totals::{Meter, money};
use super::{
    Adapter, Argv, Invocation, Preset, Reader, Remaining, SessionTotals, SessionUse, Tells,
    Understood, is_session_name, session,
};

const HOST: &str = "api.anthropic.com";
/// One line can hold no more news than that.
const MOST_BLOCKS: usize = 1000;

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
            tells: Tells::TokensAndCost,
        }
    }

    fn invocation(
        &self,
        spec: &AgentSpec,
        session: &SessionUse,
        remaining: Remaining,
    ) -> Invocation {
        let argv = Argv::of(&spec.program).add(&[
            "-p",
            "--output-format",
            "stream-json",
            "--verbose", // without it, it prints nothing but a complaint
        ]);
        let argv = match session {
            SessionUse::New { id } if is_session_name(id) => argv.add(&["--session-id", id]),
            SessionUse::Continue { id } if is_session_name(id) => argv.add(&["--resume", id]),
            SessionUse::Fork { id } if is_session_name(id) => {
                argv.add(&["--resume", id, "--fork-session"])
            }
            _ => argv,
        };
        let argv = match spec.permissions {
            Permissions::Bypass => argv.add(&["--dangerously-skip-permissions"]),
            Permissions::AcceptEdits => argv.add(&["--permission-mode", "acceptEdits"]),
            Permissions::Ask => argv.add(&["--permission-mode", "default"]),
        };
        let turns = remaining.turns.map(|turns| turns.to_string());
        let budget = remaining.cost.map(|cost| cost.dollars().to_string());
        let argv = argv
            .option("--model", spec.model.as_deref())
            .option("--max-turns", turns.as_deref())
            .option("--max-budget-usd", budget.as_deref());
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        argv.add(&args).told(&spec.prompt)
    }

    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader> {
        Box::new(Lines { meter: Meter::after(before) })
    }
}

#[derive(Debug)]
struct Lines {
    meter: Meter,
}

impl Reader for Lines {
    fn line(&mut self, line: &[u8], news: &mut Vec<AgentNews>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        match text(&line, "type") {
            "system" => system(&line, news),
            "assistant" => self.assistant(&line, news),
            "user" => user(&line, news),
            "result" => self.result(&line, news),
            "rate_limit_event" => rate_limit(&line, news),
            // There are many more, and with every version others.
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

impl Lines {
    fn assistant(&mut self, line: &Object, news: &mut Vec<AgentNews>) {
        if let Some(error) = some_text(line, "error") {
            news.push(AgentNews::Error { message: error });
        }
        let Some(message) = below(line, "message") else { return };
        for block in list(message, "content").iter().take(MOST_BLOCKS) {
            news.extend(block.as_object().and_then(said));
        }
        let id = text(message, "id");
        let main = line.get("parent_tool_use_id").is_none_or(Value::is_null);
        // Every part of a message is a line of its own, with the same name.
        if main && !self.meter.knows(id) {
            self.meter.turn();
        }
        let used = below(message, "usage").map(usage).unwrap_or_default();
        self.meter.message(id, used, news);
    }

    /// `is_error` decides: with the service out of reach the subtype is `success` all the same.
    fn result(&mut self, line: &Object, news: &mut Vec<AgentNews>) {
        let denied = list(line, "permission_denials");
        if !denied.is_empty() {
            let tools: Vec<String> = denied.iter().take(5).map(denial).collect();
            let message = format!("{} denied: {}", denied.len(), tools.join("; "));
            news.push(AgentNews::Error { message });
        }
        let cost_usd = money(line.get("total_cost_usd"), news);
        let used = below(line, "usage").map(usage).unwrap_or_default();
        self.meter.total(TokenUsage { cost_usd, ..used }, number(line, "num_turns"), news);
        let word = some_text(line, "subtype");
        let is_error = match line.get("is_error").and_then(Value::as_bool) {
            Some(is_error) => is_error,
            None => word.as_deref() != Some("success"),
        };
        let text = some_text(line, "result").or_else(|| {
            let errors = json::content(line.get("errors"));
            (!errors.is_empty()).then_some(errors)
        });
        let turns = Some(self.meter.turns());
        news.push(AgentNews::Result(AgentResult { is_error, word, text, turns }));
    }
}

fn system(line: &Object, news: &mut Vec<AgentNews>) {
    match text(line, "subtype") {
        "init" => news.push(session(text(line, "session_id"), some_text(line, "model"))),
        "api_retry" => {
            let error = some_text(line, "error").unwrap_or_else(|| "no answer".into());
            let status = match number(line, "error_status") {
                0 => String::new(),
                status => format!(" (status {status})"),
            };
            let (attempt, most) = (number(line, "attempt"), number(line, "max_retries"));
            let message = format!("the service: {error}{status}; attempt {attempt} of {most}");
            news.push(AgentNews::Error { message });
        }
        "compact_boundary" => {
            let text = "the conversation was made shorter".to_owned();
            news.push(AgentNews::Message { role: Role::System, text });
        }
        "task_notification" => {
            if let Some(text) = some_text(line, "summary") {
                news.push(AgentNews::Message { role: Role::System, text });
            }
        }
        _ => {}
    }
}

fn user(line: &Object, news: &mut Vec<AgentNews>) {
    let Some(message) = below(line, "message") else { return };
    if let Some(text) = some_text(message, "content") {
        news.push(AgentNews::Message { role: Role::User, text });
    }
    for block in list(message, "content").iter().take(MOST_BLOCKS) {
        let Some(block) = block.as_object() else { continue };
        match text(block, "type") {
            "text" => {
                let text = text(block, "text").to_owned();
                news.push(AgentNews::Message { role: Role::User, text });
            }
            _ => news.extend(said(block)),
        }
    }
}

/// One part of a message.
fn said(block: &Object) -> Option<AgentNews> {
    match text(block, "type") {
        "text" => {
            let text = some_text(block, "text")?;
            Some(AgentNews::Message { role: Role::Assistant, text })
        }
        "thinking" => {
            let text = some_text(block, "thinking")?;
            Some(AgentNews::Message { role: Role::Thinking, text })
        }
        "tool_use" | "server_tool_use" | "mcp_tool_use" => Some(AgentNews::ToolCall {
            id: some_text(block, "id"),
            tool: text(block, "name").to_owned(),
            input: block.get("input").map(json::input).unwrap_or_default(),
        }),
        kind if kind.ends_with("tool_result") => Some(AgentNews::ToolResult {
            id: some_text(block, "tool_use_id"),
            is_error: block.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            text: json::content(block.get("content")),
        }),
        _ => None,
    }
}

fn rate_limit(line: &Object, news: &mut Vec<AgentNews>) {
    let Some(info) = below(line, "rate_limit_info") else { return };
    match text(info, "status") {
        "" | "allowed" => {}
        status => {
            let message = format!("the service's limit: {status}");
            news.push(AgentNews::Error { message });
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

/// What is read from the cache and written to it is input too, and is counted apart by the service.
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
