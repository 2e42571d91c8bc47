//! Gemini for who is logged in with an account: generateContent in an envelope, and questions about the account.

use serde_json::{Value, json};

const PREFIX: &str = "/v1internal:";

pub(super) fn is_one(target: &str) -> bool {
    target.starts_with(PREFIX)
}

/// The request in the envelope.
pub(super) fn unwrapped(target: &str, mut body: Value) -> Value {
    match body.get_mut("request") {
        Some(request) if is_one(target) => request.take(),
        _ => body,
    }
}

/// A reply in its envelope.
pub(super) fn wrapped(target: &str, document: Value) -> Value {
    if is_one(target) { json!({ "response": document, "traceId": "trace" }) } else { document }
}

/// Answers what is no part of the conversation.
pub(super) fn aside(target: &str) -> Value {
    let tier = json!({ "id": "standard-tier", "name": "the test's", "isDefault": true });
    match target.trim_start_matches(PREFIX).split('?').next().unwrap_or_default() {
        "loadCodeAssist" => json!({
            "currentTier": tier, "allowedTiers": [tier], "cloudaicompanionProject": "project-of-the-test",
        }),
        "onboardUser" => json!({
            "done": true, "response": { "cloudaicompanionProject": { "id": "project-of-the-test" } },
        }),
        "generateContent" | "streamGenerateContent" => {
            wrapped(target, super::generate_content::routing())
        }
        _ => json!({}),
    }
}
