//! Gemini generateContent: a turn as one document, which streamGenerateContent sends as an event.

use serde_json::{Value, json};

use super::{Turn, TurnUsage};

/// Only the agent's own conversation offers the tool for shell commands.
pub(super) fn is_conversation(body: &Value) -> bool {
    let tools = body.get("tools").and_then(Value::as_array).into_iter().flatten();
    let declared = tools.filter_map(|tool| tool["functionDeclarations"].as_array()).flatten();
    declared.into_iter().any(|function| function["name"] == "run_shell_command")
}

pub(super) fn document(turn: &Turn, usage: TurnUsage) -> Value {
    let call = |name: &str, args: Value| json!({ "functionCall": { "name": name, "args": args } });
    let path = |path: &str| format!("/workspace/{path}");
    let part = match turn {
        Turn::Run(command) => {
            call("run_shell_command", json!({ "command": command, "description": "a step" }))
        }
        Turn::Read(file) => call("read_file", json!({ "file_path": path(file) })),
        Turn::Edit { path: file, old, new } => call(
            "replace",
            json!({
                "file_path": path(file), "instruction": "Replace the line.",
                "old_string": old, "new_string": new,
            }),
        ),
        Turn::Say(text) => json!({ "text": text }),
        Turn::Fail(_) | Turn::Hang => json!({ "text": "" }),
    };
    reply(part, usage)
}

/// The agent asks a small model which model to use.
pub(super) fn routing() -> Value {
    let choice = json!({ "complexity_reasoning": "It is simple.", "complexity_score": 10 });
    reply(json!({ "text": choice.to_string() }), TurnUsage { input_tokens: 0, output_tokens: 0 })
}

fn reply(part: Value, usage: TurnUsage) -> Value {
    let TurnUsage { input_tokens, output_tokens } = usage;
    json!({
        "candidates": [{
            "content": { "role": "model", "parts": [part] }, "finishReason": "STOP", "index": 0,
        }],
        "usageMetadata": {
            "promptTokenCount": input_tokens, "candidatesTokenCount": output_tokens,
            "totalTokenCount": input_tokens + output_tokens,
        },
        "modelVersion": "gemini-test", "responseId": "response",
    })
}
