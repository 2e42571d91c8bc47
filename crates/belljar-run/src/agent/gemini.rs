//! Gemini CLI, as `gemini --output-format stream-json` speaks.

use std::collections::BTreeMap;

use belljar_spec::manifest::{Permissions, Secret};
use belljar_spec::{AgentNews, AgentResult, AgentSpec, Role, TokenUsage};

use super::json::{self, Object, below, number, object, some_text, text};
use super::totals::Meter;
use super::{
    Adapter, Argv, Invocation, Preset, Reader, Remaining, SessionTotals, SessionUse, Tells,
    Understood, is_session_name, session,
};

const HOST: &str = "generativelanguage.googleapis.com";
/// Of what comes piece by piece, kept until it is whole.
const LONGEST_MESSAGE: usize = 1 << 20;

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
            // It asks whether the folder is trusted, and nobody is there to answer.
            env: BTreeMap::from([("GEMINI_CLI_TRUST_WORKSPACE".into(), "true".into())]),
            directories: vec![".gemini"],
            login_files: vec![".gemini/oauth_creds.json"],
            login_hosts: vec![
                "cloudcode-pa.googleapis.com:443".into(),
                "oauth2.googleapis.com:443".into(),
            ],
            login_env: BTreeMap::from([("GOOGLE_GENAI_USE_GCA".into(), "true".into())]),
            tells: Tells::Tokens,
        }
    }

    /// It has no fork: in a run of its own, with a home of its own, going on is one.
    fn invocation(&self, spec: &AgentSpec, session: &SessionUse, _: Remaining) -> Invocation {
        let argv = Argv::of(&spec.program).add(&["--output-format", "stream-json"]);
        let argv = argv.add(&[
            "--approval-mode",
            match spec.permissions {
                Permissions::Bypass => "yolo",
                Permissions::AcceptEdits => "auto_edit",
                Permissions::Ask => "default",
            },
        ]);
        let argv = match session {
            SessionUse::Continue { id } | SessionUse::Fork { id } if is_session_name(id) => {
                argv.add(&["--resume", id])
            }
            _ => argv,
        };
        let argv = argv.option("--model", spec.model.as_deref());
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        argv.add(&args).told(&spec.prompt)
    }

    /// Its sums are of one process.
    fn reader_after(&self, _: SessionTotals) -> Box<dyn Reader> {
        Box::new(Lines::default())
    }
}

#[derive(Debug, Default)]
struct Lines {
    meter: Meter,
    answering: bool,
    /// What the model is saying.
    open: String,
    message: Option<String>,
}

impl Reader for Lines {
    fn line(&mut self, line: &[u8], news: &mut Vec<AgentNews>) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::Yes;
        }
        let Some(line) = object(line) else { return Understood::No };
        let kind = text(&line, "type");
        if kind != "message" || text(&line, "role") != "assistant" {
            self.close(news);
        }
        match kind {
            "init" => news.push(session(text(&line, "session_id"), some_text(&line, "model"))),
            "message" => self.message(&line, news),
            "tool_use" => {
                self.answer();
                news.push(AgentNews::ToolCall {
                    id: some_text(&line, "tool_id"),
                    tool: text(&line, "tool_name").to_owned(),
                    input: line.get("parameters").map(json::input).unwrap_or_default(),
                });
            }
            "tool_result" => {
                self.answering = false;
                let error = below(&line, "error").map(|error| text(error, "message").to_owned());
                let output = json::content(line.get("output"));
                news.push(AgentNews::ToolResult {
                    id: some_text(&line, "tool_id"),
                    is_error: text(&line, "status") != "success",
                    text: error.filter(|_| output.is_empty()).unwrap_or(output),
                });
            }
            "error" => news.push(AgentNews::Error { message: text(&line, "message").to_owned() }),
            "result" => self.result(&line, news),
            _ => {}
        }
        Understood::Yes
    }

    fn end(&mut self, news: &mut Vec<AgentNews>) {
        self.close(news);
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
    fn answer(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.meter.turn();
        }
    }

    fn message(&mut self, line: &Object, news: &mut Vec<AgentNews>) {
        let content = text(line, "content");
        if text(line, "role") != "assistant" {
            let text = content.to_owned();
            news.push(AgentNews::Message { role: Role::User, text });
            return;
        }
        self.answer();
        let delta = line.get("delta").and_then(serde_json::Value::as_bool) == Some(true);
        if !delta {
            self.close(news);
        }
        self.open.push_str(content);
        if !delta || self.open.len() > LONGEST_MESSAGE {
            self.close(news);
        }
    }

    fn close(&mut self, news: &mut Vec<AgentNews>) {
        let text = std::mem::take(&mut self.open);
        if !text.is_empty() {
            self.message = Some(text.clone());
            news.push(AgentNews::Message { role: Role::Assistant, text });
        }
    }

    fn result(&mut self, line: &Object, news: &mut Vec<AgentNews>) {
        if let Some(stats) = below(line, "stats") {
            self.meter.total(usage(stats), 0, news);
        }
        let is_error = text(line, "status") != "success";
        let (mut word, mut said) = (None, self.message.clone());
        if is_error {
            word = Some("error".to_owned());
        }
        if let Some(error) = below(line, "error") {
            word = some_text(error, "type").or(word);
            said = some_text(error, "message").or(said);
        }
        let turns = Some(self.meter.turns());
        news.push(AgentNews::Result(AgentResult { is_error, word, text: said, turns }));
    }
}

/// What it thought is in the whole and in neither part.
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
