//! The adapter for Codex: `codex exec --json`.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::resolve::HOME_INSIDE;
use belljar_spec::{AgentEvent, AgentResult, AgentSpec, OsText, Role, TokenUsage};

use super::json::{self, Object, list, nested, number, object, some_text, text};
use super::usage_meter::UsageMeter;
use super::{
    Adapter, AgentCommand, Argv, Preset, Reader, Remaining, SessionTotals, SessionUse, Understood,
    UsageReporting, is_session_name, session,
};

const HOST: &str = "api.openai.com";
/// At every start codex would ask for catalogues and send statistics. The run reaches its model's service alone, so it
/// would wait for each of these requests to be denied.
const QUIET: &[&str] = &[
    "features.api_key_model_discovery=false",
    "features.plugins=false",
    "features.apps=false",
    "analytics.enabled=false",
];

#[derive(Debug)]
pub(super) struct Codex;

impl Adapter for Codex {
    fn preset(&self) -> Preset {
        let key = Secret {
            env: "CODEX_API_KEY".into(),
            host: HOST.into(),
            bearer: Some(true),
            ..Secret::default()
        };
        let from_openai = Secret { from_env: Some("OPENAI_API_KEY".into()), ..key.clone() };
        Preset {
            hosts: vec![format!("{HOST}:443")],
            secrets: vec![key, from_openai],
            env: BTreeMap::from([("CODEX_HOME".into(), format!("{HOME_INSIDE}/.codex"))]),
            directories: vec![".codex"], // codex does not create it
            login_files: vec![".codex/auth.json"],
            login_hosts: vec!["chatgpt.com:443".into(), "auth.openai.com:443".into()],
            login_env: BTreeMap::new(),
            // Only `codex exec` reads the variable; the proxy replaces what is sent in any case.
            terminal_login: Some((
                ".codex/auth.json",
                "{\"auth_mode\": \"apikey\", \"OPENAI_API_KEY\": \"belljar-placeholder\"}\n",
            )),
            terminal_settings: None,
            usage_reporting: UsageReporting::Tokens,
        }
    }

    /// Options come before `resume`, which accepts only a few.
    fn invocation(&self, spec: &AgentSpec, session: &SessionUse, _: Remaining) -> AgentCommand {
        let argv = Argv::of(&spec.program).add(&["exec", "--json", "--skip-git-repo-check"]);
        let argv = options(argv, spec);
        let argv = match session {
            SessionUse::Continue { id } if is_session_name(id) => argv.add(&["resume", id]),
            SessionUse::Fork { id } if is_session_name(id) => argv.add(&["fork", id]),
            _ => argv,
        };
        argv.add(&["-"]).with_prompt(&spec.prompt)
    }

    fn terminal_command(&self, spec: &AgentSpec) -> Option<Vec<OsText>> {
        Some(options(Argv::of(&spec.program), spec).0)
    }

    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader> {
        Box::new(CodexLines { meter: UsageMeter::after(before), answering: false, message: None })
    }
}

/// Of two values for one key codex takes the last, so the operator's own arguments win.
fn options(argv: Argv, spec: &AgentSpec) -> Argv {
    let argv = match spec.permissions {
        Permissions::Bypass => argv.add(&["--dangerously-bypass-approvals-and-sandbox"]),
        Permissions::AcceptEdits => argv.add(&["-c", "sandbox_mode=\"workspace-write\""]),
        Permissions::Ask => argv.add(&["-c", "sandbox_mode=\"read-only\""]),
    };
    let argv = QUIET.iter().fold(argv, |argv, setting| argv.add(&["-c", setting]));
    let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
    argv.option("--model", spec.model.as_deref()).add(&args)
}

#[derive(Debug)]
struct CodexLines {
    meter: UsageMeter,
    /// The model has responded since the last tool result.
    answering: bool,
    message: Option<String>,
}

impl Reader for CodexLines {
    fn line(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        match text(&line, "type") {
            "thread.started" => events.push(session(text(&line, "thread_id"), None)),
            "item.started" => self.started(nested(&line, "item"), events),
            "item.completed" => self.completed(nested(&line, "item"), events),
            "turn.completed" => {
                let total = nested(&line, "usage").map(usage).unwrap_or_default();
                self.meter.total(total, 0, events);
                self.result(None, self.message.clone(), events);
            }
            "turn.failed" => {
                let error = nested(&line, "error").map(|error| text(error, "message").to_owned());
                self.result(Some("turn.failed"), error, events);
            }
            "error" => {
                events.push(AgentEvent::Error { message: text(&line, "message").to_owned() })
            }
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

impl CodexLines {
    /// A turn of Codex is a whole prompt; here each response of the model counts.
    fn answer(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.meter.turn();
        }
    }

    fn started(&mut self, item: Option<&Object>, events: &mut Vec<AgentEvent>) {
        let Some((item, tool, input)) = item.and_then(|item| call(item).map(|(t, i)| (item, t, i)))
        else {
            return;
        };
        self.answer();
        events.push(AgentEvent::ToolCall { id: some_text(item, "id"), tool, input });
    }

    fn completed(&mut self, item: Option<&Object>, events: &mut Vec<AgentEvent>) {
        let Some(item) = item else { return };
        let message = |role, text: &str| AgentEvent::Message { role, text: text.to_owned() };
        match text(item, "type") {
            "agent_message" => {
                self.answer();
                self.message = some_text(item, "text");
                events.push(message(Role::Assistant, text(item, "text")));
            }
            "plan" => events.push(message(Role::Assistant, text(item, "text"))),
            "reasoning" => {
                self.answer();
                events.push(message(Role::Thinking, text(item, "text")));
            }
            "todo_list" => events.push(message(Role::System, &todo(item))),
            "error" => events.push(AgentEvent::Error { message: text(item, "message").to_owned() }),
            "file_change" => {
                // Not all versions print a line when it starts, so the call is taken from this one.
                self.answer();
                let id = some_text(item, "id");
                let (tool, input) = ("file_change".to_owned(), changes(item));
                events.push(AgentEvent::ToolCall { id, tool, input });
                self.ended(item, String::new(), events);
            }
            "command_execution" => {
                let mut output = text(item, "aggregated_output").to_owned();
                let code = item.get("exit_code").and_then(serde_json::Value::as_i64);
                if let Some(code) = code.filter(|code| *code != 0) {
                    output.insert_str(0, &format!("exit code {code}\n"));
                }
                self.ended(item, output, events);
            }
            "mcp_tool_call" => {
                let error = nested(item, "error").map(|error| text(error, "message").to_owned());
                let result = nested(item, "result").and_then(|result| result.get("content"));
                self.ended(item, error.unwrap_or_else(|| json::content(result)), events);
            }
            "web_search" | "collab_tool_call" => self.ended(item, String::new(), events),
            _ => {}
        }
    }

    fn ended(&mut self, item: &Object, text: String, events: &mut Vec<AgentEvent>) {
        self.answering = false;
        let status = json::text(item, "status");
        let exit = item.get("exit_code").and_then(serde_json::Value::as_i64);
        let is_error =
            matches!(status, "failed" | "declined") || exit.is_some_and(|code| code != 0);
        let text = match exit {
            Some(code) if code != 0 && text.trim().is_empty() => format!("exit code {code}"),
            _ => text,
        };
        events.push(AgentEvent::ToolResult { id: some_text(item, "id"), is_error, text });
    }

    fn result(&self, word: Option<&str>, text: Option<String>, events: &mut Vec<AgentEvent>) {
        let (is_error, word) = (word.is_some(), word.map(str::to_owned));
        let turns = Some(self.meter.turns());
        events.push(AgentEvent::Result(AgentResult { is_error, code: word, text, turns }));
    }
}

/// Tool and input of items that are tool calls and are reported when they start.
fn call(item: &Object) -> Option<(String, String)> {
    let kind = text(item, "type");
    match kind {
        "command_execution" => Some((kind.to_owned(), text(item, "command").to_owned())),
        "web_search" => Some((kind.to_owned(), text(item, "query").to_owned())),
        "mcp_tool_call" => {
            let tool = format!("{}.{}", text(item, "server"), text(item, "tool"));
            Some((tool, item.get("arguments").map(json::input).unwrap_or_default()))
        }
        "collab_tool_call" => {
            Some((text(item, "tool").to_owned(), text(item, "prompt").to_owned()))
        }
        _ => None,
    }
}

fn changes(item: &Object) -> String {
    let changes = list(item, "changes").iter().filter_map(serde_json::Value::as_object);
    let shown = changes.take(50).map(|one| format!("{} {}", text(one, "kind"), text(one, "path")));
    shown.collect::<Vec<_>>().join("\n")
}

fn todo(item: &Object) -> String {
    let items = list(item, "items").iter().filter_map(serde_json::Value::as_object);
    let line = |one: &Object| {
        let done = one.get("completed").and_then(serde_json::Value::as_bool) == Some(true);
        format!("[{}] {}", if done { 'x' } else { ' ' }, text(one, "text"))
    };
    items.take(50).map(line).collect::<Vec<_>>().join("\n")
}

/// The total of the whole thread.
fn usage(usage: &Object) -> TokenUsage {
    TokenUsage {
        input_tokens: number(usage, "input_tokens"),
        output_tokens: number(usage, "output_tokens"),
        cached_tokens: number(usage, "cached_input_tokens"),
        ..TokenUsage::default()
    }
}
