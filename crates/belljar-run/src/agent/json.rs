//! Reads fields from JSON objects of unknown shape.

use belljar_spec::{MAX_COUNT, MAX_TEXT};
use serde_json::{Map, Value};

pub(super) type Object = Map<String, Value>;

/// `None` if it is not a JSON object. An object that would use too much memory is returned in part.
pub(super) fn object(line: &[u8]) -> Option<Object> {
    match super::bounded_json::parse(line) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

pub(super) fn text<'a>(object: &'a Object, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn some_text(object: &Object, key: &str) -> Option<String> {
    object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A count. Negative numbers and other values are 0.
pub(super) fn number(object: &Object, key: &str) -> u64 {
    match object.get(key) {
        Some(Value::Number(number)) => {
            // Some agents use floats.
            let number = number
                .as_u64()
                .unwrap_or_else(|| number.as_f64().unwrap_or_default().max(0.0) as u64);
            number.min(MAX_COUNT)
        }
        _ => 0,
    }
}

pub(super) fn nested<'a>(object: &'a Object, key: &str) -> Option<&'a Object> {
    object.get(key).and_then(Value::as_object)
}

pub(super) fn list<'a>(object: &'a Object, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn compact(value: &Value) -> String {
    value.to_string()
}

/// A readable form of a tool's input: the command or the file if there is one, else all of it.
pub(super) fn input(value: &Value) -> String {
    const MAIN_KEYS: &[&str] = &[
        "command",
        "file_path",
        "path",
        "notebook_path",
        "absolute_path",
        "dir_path",
        "url",
        "query",
        "prompt",
        "description",
    ];
    let Some(object) = value.as_object() else {
        return value.as_str().map_or_else(|| compact(value), str::to_owned);
    };
    if let Some(pattern) = some_text(object, "pattern") {
        return match some_text(object, "path") {
            Some(path) => format!("{pattern} in {path}"),
            None => pattern,
        };
    }
    let found = MAIN_KEYS.iter().find_map(|key| match object.get(*key)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            items.map(|items| items.join(" "))
        }
        _ => None,
    });
    found.unwrap_or_else(|| compact(value))
}

/// The text of a tool's result: a string, or parts of which some are text.
pub(super) fn content(value: Option<&Value>) -> String {
    let mut all = String::new();
    match value {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => all.push_str(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                if all.len() > MAX_TEXT {
                    break; // the rest would be truncated
                }
                if !all.is_empty() {
                    all.push('\n');
                }
                match part {
                    Value::String(text) => all.push_str(text),
                    Value::Object(part) if part.contains_key("text") => {
                        all.push_str(text(part, "text"));
                    }
                    Value::Object(part) => all.push_str(&format!("[{}]", text(part, "type"))),
                    other => all.push_str(&compact(other)),
                }
            }
        }
        Some(other) => all = compact(other),
    }
    all
}
