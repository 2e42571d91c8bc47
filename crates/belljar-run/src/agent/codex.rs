//! Codex, as `codex exec --json` speaks.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::resolve::HOME_INSIDE;
use belljar_spec::{AgentNews, AgentResult, AgentSpec, Role, TokenUsage};

use super::json::{self, Object, below, list, number, object, some_text, text};
use super::totals::Meter;
use super::{
    Adapter, Argv, Invocation, Preset, Reader, Remaining, SessionTotals, SessionUse, Tells,
    Understood, is_session_name, session,
};

const HOST: &str = "api.openai.com";

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
            directories: vec![".codex"], // it does not make it
            login_files: vec![".codex/auth.json"],
            login_hosts: vec!["chatgpt.com:443".into(), "auth.openai.com:443".into()],
            login_env: BTreeMap::new(),
            tells: Tells::Tokens,
        }
    }

    /// Options come before `resume`, which takes few of its own.
    fn invocation(&self, spec: &AgentSpec, session: &SessionUse, _: Remaining) -> Invocation {
        let argv = Argv::of(&spec.program).add(&["exec", "--json", "--skip-git-repo-check"]);
        let argv = match spec.permissions {
            Permissions::Bypass => argv.add(&["--dangerously-bypass-approvals-and-sandbox"]),
            Permissions::AcceptEdits => argv.add(&["-c", "sandbox_mode=\"workspace-write\""]),
            Permissions::Ask => argv.add(&["-c", "sandbox_mode=\"read-only\""]),
        };
        let argv = argv.option("--model", spec.model.as_deref());
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        let argv = argv.add(&args);
        let argv = match session {
            SessionUse::Continue { id } if is_session_name(id) => argv.add(&["resume", id]),
            SessionUse::Fork { id } if is_session_name(id) => argv.add(&["fork", id]),
            _ => argv,
        };
        argv.add(&["-"]).told(&spec.prompt)
    }

    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader> {
        Box::new(Lines { meter: Meter::after(before), answering: false, message: None })
    }
}

#[derive(Debug)]
struct Lines {
    meter: Meter,
    /// The model has spoken since the last result that it was given.
    answering: bool,
    message: Option<String>,
}

impl Reader for Lines {
    fn line(&mut self, line: &[u8], news: &mut Vec<AgentNews>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        match text(&line, "type") {
            "thread.started" => news.push(session(text(&line, "thread_id"), None)),
            "item.started" => self.started(below(&line, "item"), news),
            "item.completed" => self.completed(below(&line, "item"), news),
            "turn.completed" => {
                let total = below(&line, "usage").map(usage).unwrap_or_default();
                self.meter.total(total, 0, news);
                self.result(None, self.message.clone(), news);
            }
            "turn.failed" => {
                let error = below(&line, "error").map(|error| text(error, "message").to_owned());
                self.result(Some("turn.failed"), error, news);
            }
            "error" => news.push(AgentNews::Error { message: text(&line, "message").to_owned() }),
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
    /// Its own turns are whole prompts; what counts here is each answer of the model.
    fn answer(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.meter.turn();
        }
    }

    fn started(&mut self, item: Option<&Object>, news: &mut Vec<AgentNews>) {
        let Some((item, tool, input)) = item.and_then(|item| call(item).map(|(t, i)| (item, t, i)))
        else {
            return;
        };
        self.answer();
        news.push(AgentNews::ToolCall { id: some_text(item, "id"), tool, input });
    }

    fn completed(&mut self, item: Option<&Object>, news: &mut Vec<AgentNews>) {
        let Some(item) = item else { return };
        let said = |role, text: &str| AgentNews::Message { role, text: text.to_owned() };
        match text(item, "type") {
            "agent_message" => {
                self.answer();
                self.message = some_text(item, "text");
                news.push(said(Role::Assistant, text(item, "text")));
            }
            "plan" => news.push(said(Role::Assistant, text(item, "text"))),
            "reasoning" => {
                self.answer();
                news.push(said(Role::Thinking, text(item, "text")));
            }
            "todo_list" => news.push(said(Role::System, &todo(item))),
            "error" => news.push(AgentNews::Error { message: text(item, "message").to_owned() }),
            "file_change" => {
                // There is no line for its beginning in all versions, and nothing else in this one.
                self.answer();
                let id = some_text(item, "id");
                let (tool, input) = ("file_change".to_owned(), changes(item));
                news.push(AgentNews::ToolCall { id, tool, input });
                self.ended(item, String::new(), news);
            }
            "command_execution" => {
                let mut output = text(item, "aggregated_output").to_owned();
                let code = item.get("exit_code").and_then(serde_json::Value::as_i64);
                if let Some(code) = code.filter(|code| *code != 0) {
                    output.insert_str(0, &format!("exit code {code}\n"));
                }
                self.ended(item, output, news);
            }
            "mcp_tool_call" => {
                let error = below(item, "error").map(|error| text(error, "message").to_owned());
                let result = below(item, "result").and_then(|result| result.get("content"));
                self.ended(item, error.unwrap_or_else(|| json::content(result)), news);
            }
            "web_search" | "collab_tool_call" => self.ended(item, String::new(), news),
            _ => {}
        }
    }

    fn ended(&mut self, item: &Object, text: String, news: &mut Vec<AgentNews>) {
        self.answering = false;
        let status = json::text(item, "status");
        let exit = item.get("exit_code").and_then(serde_json::Value::as_i64);
        let is_error =
            matches!(status, "failed" | "declined") || exit.is_some_and(|code| code != 0);
        news.push(AgentNews::ToolResult { id: some_text(item, "id"), is_error, text });
    }

    fn result(&self, word: Option<&str>, text: Option<String>, news: &mut Vec<AgentNews>) {
        let (is_error, word) = (word.is_some(), word.map(str::to_owned));
        let turns = Some(self.meter.turns());
        news.push(AgentNews::Result(AgentResult { is_error, word, text, turns }));
    }
}

/// Tool and input, for items that are calls of tools and tell when they begin.
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

/// The sum of the whole thread.
fn usage(usage: &Object) -> TokenUsage {
    TokenUsage {
        input_tokens: number(usage, "input_tokens"),
        output_tokens: number(usage, "output_tokens"),
        cached_tokens: number(usage, "cached_input_tokens"),
        ..TokenUsage::default()
    }
}
