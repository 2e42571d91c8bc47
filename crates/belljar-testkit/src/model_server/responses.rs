//! OpenAI Responses: a turn as events, which a WebSocket carries as messages.

use serde_json::{Value, json};

use super::http::ServerEvent;
use super::{Turn, TurnUsage};

pub(super) fn is_conversation(body: &Value) -> bool {
    body.get("input").is_some() && !is_warm_up(body)
}

/// A WebSocket client may send the request in advance, without asking for a reply.
pub(super) fn is_warm_up(body: &Value) -> bool {
    body["generate"] == false
}

pub(super) fn events(turn: &Turn, number: u64, usage: TurnUsage) -> Vec<ServerEvent> {
    let command = |command: &str| {
        json!({
            "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"),
            "name": "exec_command", "arguments": json!({ "cmd": command }).to_string(),
        })
    };
    let item = match turn {
        Turn::Run(line) => command(line),
        Turn::Read(path) => command(&format!("cat {path}")),
        Turn::Edit { path, old, new } => command(&format!(
            "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\nEOF\n"
        )),
        Turn::Say(text) => json!({
            "type": "message", "id": format!("msg_{number}"), "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": text, "annotations": [] }],
        }),
        Turn::Fail(_) | Turn::Hang => return finished(Vec::new(), number, usage),
    };
    finished(vec![item], number, usage)
}

/// A reply with these items.
pub(super) fn finished(items: Vec<Value>, number: u64, usage: TurnUsage) -> Vec<ServerEvent> {
    let id = format!("resp_{number}");
    let TurnUsage { input_tokens, output_tokens } = usage;
    let used = json!({
        "input_tokens": input_tokens, "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": output_tokens, "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input_tokens + output_tokens,
    });
    let mut events = vec![named("response.created", json!({ "response": { "id": id } }))];
    for (index, item) in items.iter().enumerate() {
        let data = json!({ "output_index": index, "item": item });
        events.push(named("response.output_item.done", data));
    }
    let response = json!({ "id": id, "status": "completed", "output": items, "usage": used });
    events.push(named("response.completed", json!({ "response": response })));
    events
}

fn named(name: &'static str, mut data: Value) -> ServerEvent {
    data["type"] = name.into();
    (Some(name), data)
}
