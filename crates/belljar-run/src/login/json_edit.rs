//! Replaces single values in a JSON text and leaves every other byte as it is.
//!
//! The file belongs to the agent: numbers, order and unknown fields must survive, so it is never written from a parsed
//! form.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// A JSON object in a text, by its place there.
#[derive(Debug)]
pub(super) struct ObjectText<'a> {
    text: &'a str,
    range: Range<usize>,
    members: Members<'a>,
}

/// One change of the text.
#[derive(Debug)]
pub(super) struct Edit {
    range: Range<usize>,
    new: String,
}

impl<'a> ObjectText<'a> {
    /// The whole text is one object.
    pub(super) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let members: Members<'a> = serde_json::from_str(text)?;
        let start = text.find('{').unwrap_or(0);
        Ok(Self { text, range: start..text.trim_end().len(), members })
    }

    /// A member that is an object itself.
    pub(super) fn object(&self, key: &str) -> Option<Self> {
        let raw = self.members.get(key)?.get();
        let members: Members<'a> = serde_json::from_str(raw).ok()?;
        Some(Self { text: self.text, range: self.range_of(raw), members })
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.members.get(key)?.get()).ok()
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        serde_json::from_str(self.members.get(key)?.get()).ok()
    }

    pub(super) fn value(&self, key: &str) -> Option<serde_json::Value> {
        serde_json::from_str(self.members.get(key)?.get()).ok()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.members.get(key).is_some_and(|raw| raw.get() != "null")
    }

    /// Sets a member; one that is missing becomes the first.
    pub(super) fn set(&self, key: &str, value: &serde_json::Value) -> Edit {
        match self.members.get(key) {
            Some(raw) => Edit { range: self.range_of(raw.get()), new: value.to_string() },
            None => {
                let at = self.range.start + 1;
                let comma = if self.members.is_empty() { "" } else { "," };
                let key = serde_json::Value::from(key);
                Edit { range: at..at, new: format!("{key}:{value}{comma}") }
            }
        }
    }

    /// A raw value is a part of the text, so its place is the distance of their beginnings.
    fn range_of(&self, raw: &str) -> Range<usize> {
        let start = raw.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + raw.len()
    }
}

/// The text with all changes, none of which overlap.
pub(super) fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.range.start);
    let mut new = String::with_capacity(text.len() + 4096);
    let mut from = 0;
    for Edit { range, new: value } in edits {
        new.push_str(text.get(from..range.start).unwrap_or_default());
        new.push_str(&value);
        from = range.end;
    }
    new.push_str(text.get(from..).unwrap_or_default());
    new
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_value_changes() {
        let text = "{ \"n\" : 123456789012345678901234567890.10,\n\t\"a\": {\"x\":\"old\", \"y\":[1, 2]},\"z\":null }\n";
        let whole = ObjectText::parse(text).unwrap();
        let inner = whole.object("a").unwrap();
        assert_eq!(inner.text("x").as_deref(), Some("old"));
        let edits = vec![inner.set("x", &json!("né\"w")), whole.set("z", &json!(7))];
        let new = apply(text, edits);
        assert_eq!(
            new,
            "{ \"n\" : 123456789012345678901234567890.10,\n\t\"a\": {\"x\":\"né\\\"w\", \"y\":[1, 2]},\"z\":7 }\n"
        );
    }

    #[test]
    fn a_missing_member_is_added_and_the_last_of_two_counts() {
        let edit = |text: &str| {
            let whole = ObjectText::parse(text).unwrap();
            apply(text, vec![whole.set("k", &json!(1))])
        };
        assert_eq!(edit("{}"), "{\"k\":1}");
        assert_eq!(edit(" {\"a\":2}"), " {\"k\":1,\"a\":2}");
        assert_eq!(edit("{\"k\":2,\"k\":3}"), "{\"k\":2,\"k\":1}");
        for bad in ["", "[]", "3", "{\"a\":}", "{} {}"] {
            assert!(ObjectText::parse(bad).is_err(), "{bad}");
        }
    }
}
