//! Anthropic Messages: a turn as server-sent events.

use serde_json::{Value, json};

use super::http::ServerEvent;
use super::{Turn, TurnUsage};

/// Only the agent's own conversation offers the tool for shell commands.
pub(super) fn is_conversation(body: &Value) -> bool {
    let tools = body.get("tools").and_then(Value::as_array).into_iter().flatten();
    tools.into_iter().any(|tool| tool["name"] == "Bash")
}

pub(super) fn events(turn: &Turn, number: u64, usage: TurnUsage) -> Vec<ServerEvent> {
    let call = |name: &str, input: Value| (format!("toolu_{number}"), name.to_owned(), input);
    let path = |path: &str| format!("/workspace/{path}");
    let called = match turn {
        Turn::Run(command) => {
            Some(call("Bash", json!({ "command": command, "description": "a step" })))
        }
        Turn::Read(file) => Some(call("Read", json!({ "file_path": path(file) }))),
        Turn::Edit { path: file, old, new } => {
            let input = json!({ "file_path": path(file), "old_string": old, "new_string": new });
            Some(call("Edit", input))
        }
        Turn::Say(_) | Turn::Fail(_) | Turn::Hang => None,
    };
    let text = match turn {
        Turn::Say(text) => text.as_str(),
        _ => "I go on.",
    };
    let mut blocks = vec![(
        json!({ "type": "text", "text": "" }),
        json!({ "type": "text_delta", "text": text }),
    )];
    let stop = if called.is_some() { "tool_use" } else { "end_turn" };
    if let Some((id, name, input)) = called {
        blocks.push((
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": input.to_string() }),
        ));
    }
    let used = |output: u64| {
        json!({
            "input_tokens": usage.input_tokens, "output_tokens": output,
            "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
        })
    };
    let message = json!({
        "id": format!("msg_{number}"), "type": "message", "role": "assistant", "content": [],
        "model": "claude-opus-4-8", "stop_reason": null, "stop_sequence": null, "usage": used(1),
    });
    let mut events = vec![named("message_start", json!({ "message": message }))];
    for (index, (block, delta)) in blocks.into_iter().enumerate() {
        let begin = json!({ "index": index, "content_block": block });
        events.push(named("content_block_start", begin));
        events.push(named("content_block_delta", json!({ "index": index, "delta": delta })));
        events.push(named("content_block_stop", json!({ "index": index })));
    }
    let end = json!({
        "delta": { "stop_reason": stop, "stop_sequence": null },
        "usage": used(usage.output_tokens),
    });
    events.extend([named("message_delta", end), named("message_stop", json!({}))]);
    events
}

fn named(name: &'static str, mut data: Value) -> ServerEvent {
    data["type"] = name.into();
    (Some(name), data)
}
