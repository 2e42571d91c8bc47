//! The adapter for Gemini CLI: `gemini --output-format stream-json`.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::{AgentEvent, AgentResult, AgentSpec, OsText, Role, TokenUsage};

use super::json::{self, Object, nested, number, object, some_text, text};
use super::usage_meter::UsageMeter;
use super::{
    Adapter, AgentCommand, Argv, Preset, Reader, Remaining, SessionTotals, SessionUse, Understood,
    UsageReporting, is_session_name, session,
};

const HOST: &str = "generativelanguage.googleapis.com";
/// Of a message that arrives in parts and is buffered until it is complete.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Gemini;

impl Adapter for Gemini {
    fn preset(&self) -> Preset {
        Preset {
            hosts: vec![format!("{HOST}:443")],
            secrets: vec![Secret {
                env: "GEMINI_API_KEY".into(),
                host: HOST.into(),
                header: Some("x-goog-api-key".into()),
                ..Secret::default()
            }],
            // Otherwise it asks whether the folder is trusted, and waits for an answer.
            env: BTreeMap::from([("GEMINI_CLI_TRUST_WORKSPACE".into(), "true".into())]),
            directories: vec![".gemini"],
            login_files: vec![".gemini/oauth_creds.json"],
            login_hosts: vec![
                "cloudcode-pa.googleapis.com:443".into(),
                "oauth2.googleapis.com:443".into(),
            ],
            login_env: BTreeMap::from([("GOOGLE_GENAI_USE_GCA".into(), "true".into())]),
            terminal_login: Some((
                ".gemini/settings.json",
                "{\"security\": {\"auth\": {\"selectedType\": \"gemini-api-key\"}}}\n",
            )),
            terminal_settings: None,
            usage_reporting: UsageReporting::Tokens,
        }
    }

    /// Gemini cannot fork a session. A forked run has its own home, so continuing there is a fork.
    fn invocation(&self, spec: &AgentSpec, session: &SessionUse, _: Remaining) -> AgentCommand {
        let argv = Argv::of(&spec.program).add(&["--output-format", "stream-json"]);
        let argv = approval(argv, spec);
        let argv = match session {
            SessionUse::Continue { id } | SessionUse::Fork { id } if is_session_name(id) => {
                argv.add(&["--resume", id])
            }
            _ => argv,
        };
        let argv = argv.option("--model", spec.model.as_deref());
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        argv.add(&args).with_prompt(&spec.prompt)
    }

    fn terminal_command(&self, spec: &AgentSpec) -> Option<Vec<OsText>> {
        let argv = approval(Argv::of(&spec.program), spec);
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        Some(argv.option("--model", spec.model.as_deref()).add(&args).0)
    }

    /// Its totals are per process.
    fn reader_after(&self, _: SessionTotals) -> Box<dyn Reader> {
        Box::new(GeminiLines::default())
    }
}

fn approval(argv: Argv, spec: &AgentSpec) -> Argv {
    let mode = match spec.permissions {
        Permissions::Bypass => "yolo",
        Permissions::AcceptEdits => "auto_edit",
        Permissions::Ask => "default",
    };
    argv.add(&["--approval-mode", mode])
}

#[derive(Debug, Default)]
struct GeminiLines {
    meter: UsageMeter,
    answering: bool,
    /// The message that is being received.
    open: String,
    message: Option<String>,
}

impl Reader for GeminiLines {
    fn line(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        let kind = text(&line, "type");
        if kind != "message" || text(&line, "role") != "assistant" {
            self.close(events);
        }
        match kind {
            "init" => events.push(session(text(&line, "session_id"), some_text(&line, "model"))),
            "message" => self.message(&line, events),
            "tool_use" => {
                self.answer();
                events.push(AgentEvent::ToolCall {
                    id: some_text(&line, "tool_id"),
                    tool: text(&line, "tool_name").to_owned(),
                    input: line.get("parameters").map(json::input).unwrap_or_default(),
                });
            }
            "tool_result" => {
                self.answering = false;
                let error = nested(&line, "error").map(|error| text(error, "message").to_owned());
                let output = json::content(line.get("output"));
                events.push(AgentEvent::ToolResult {
                    id: some_text(&line, "tool_id"),
                    is_error: text(&line, "status") != "success",
                    text: error.filter(|_| output.is_empty()).unwrap_or(output),
                });
            }
            "error" => {
                events.push(AgentEvent::Error { message: text(&line, "message").to_owned() })
            }
            "result" => self.result(&line, events),
            _ => {}
        }
        Understood::Yes
    }

    fn end(&mut self, events: &mut Vec<AgentEvent>) {
        self.close(events);
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

impl GeminiLines {
    fn answer(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.meter.turn();
        }
    }

    fn message(&mut self, line: &Object, events: &mut Vec<AgentEvent>) {
        let content = text(line, "content");
        if text(line, "role") != "assistant" {
            let text = content.to_owned();
            events.push(AgentEvent::Message { role: Role::User, text });
            return;
        }
        self.answer();
        let delta = line.get("delta").and_then(serde_json::Value::as_bool) == Some(true);
        if !delta {
            self.close(events);
        }
        self.open.push_str(content);
        if !delta || self.open.len() > MAX_MESSAGE_BYTES {
            self.close(events);
        }
    }

    fn close(&mut self, events: &mut Vec<AgentEvent>) {
        let text = std::mem::take(&mut self.open);
        if !text.is_empty() {
            self.message = Some(text.clone());
            events.push(AgentEvent::Message { role: Role::Assistant, text });
        }
    }

    fn result(&mut self, line: &Object, events: &mut Vec<AgentEvent>) {
        if let Some(stats) = nested(line, "stats") {
            self.meter.total(usage(stats), 0, events);
        }
        let is_error = text(line, "status") != "success";
        let (mut word, mut result_text) = (None, self.message.clone());
        if is_error {
            word = Some("error".to_owned());
        }
        if let Some(error) = nested(line, "error") {
            word = some_text(error, "type").or(word);
            result_text = some_text(error, "message").or(result_text);
        }
        let turns = Some(self.meter.turns());
        events.push(AgentEvent::Result(AgentResult {
            is_error,
            code: word,
            text: result_text,
            turns,
        }));
    }
}

/// Thinking tokens are only part of the total.
fn usage(stats: &Object) -> TokenUsage {
    let input_tokens = number(stats, "input_tokens");
    let rest = number(stats, "total_tokens").saturating_sub(input_tokens);
    TokenUsage {
        input_tokens,
        output_tokens: number(stats, "output_tokens").max(rest),
        cached_tokens: number(stats, "cached"),
        ..TokenUsage::default()
    }
}
