//! Parses untrusted JSON within a fixed memory budget: two bytes of text can become a hundred in memory, and the text
//! comes from an agent.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// For all values of one line. Values past the budget are skipped and become `null`.
const MAX_MEMORY: usize = 24 << 20;
/// Of one list or object; further entries are skipped. No reader needs more.
const MAX_ENTRIES: usize = 10_000;

/// A growing list holds its old and its new allocation at once.
const ELEMENT: usize = 3 * size_of::<Value>();
/// One node of the map, which is allocated for eleven entries.
const OBJECT: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 64;
const ENTRY: usize = 2 * (size_of::<String>() + size_of::<Value>());
/// Overhead of one allocation.
const ALLOCATION: usize = 32;

/// serde_json limits the depth.
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Value> {
    let left = Cell::new(MAX_MEMORY);
    let mut parser = serde_json::Deserializer::from_slice(line);
    let value = BoundedValue { left: &left }.deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct BoundedValue<'a> {
    left: &'a Cell<usize>,
}

impl BoundedValue<'_> {
    /// Takes the bytes from the budget; false if it is used up.
    fn takes(self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn text(self, text: &str) -> Value {
        match self.takes(ALLOCATION + text.len()) {
            true => Value::String(text.to_owned()),
            false => Value::Null,
        }
    }
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(self.text(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while all.len() < MAX_ENTRIES && self.takes(ELEMENT) {
            match list.next_element_seed(self)? {
                Some(value) => all.push(value),
                None => return Ok(all.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        let mut has_room = self.takes(OBJECT);
        while has_room {
            match object.next_key_seed(self)? {
                Some(Value::String(key)) => {
                    let value = object.next_value_seed(self)?;
                    all.insert(key, value);
                }
                Some(_) => {
                    object.next_value::<IgnoredAny>()?;
                }
                None => return Ok(all.into()),
            }
            has_room = all.len() < MAX_ENTRIES && self.takes(ENTRY);
        }
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn what_is_small_is_read_as_it_is() {
        for text in [
            r#"{"a":[1,-2,0.5,1e300,true,null,"t\u00e9\n",{}],"b":{"c":[[]]},"a2":18446744073709551615}"#,
            r#"{"twice":1,"twice":2}"#,
            "[]",
        ] {
            let whole: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text.as_bytes()).unwrap(), whole);
        }
        for wrong in ["", "{", "{} {}", "[1,]", "{\"a\":nope}", "{\"a\":\"\\ud800\"}"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse("[".repeat(1000).as_bytes()).is_err(), "too deep");
    }

    #[test]
    fn what_comes_after_too_much_is_read_all_the_same() {
        let zeros = "0,".repeat(1_000_000);
        let text = format!(r#"{{"many":[{zeros}0],"type":"result"}}"#);
        let value = parse(text.as_bytes()).unwrap();
        assert_eq!(value["many"].as_array().unwrap().len(), MAX_ENTRIES);
        assert_eq!(value["type"], "result");
        let keys: Vec<String> = (0..=MAX_ENTRIES).map(|key| format!("\"{key}\":1")).collect();
        let value = parse(format!("{{{}}}", keys.join(",")).as_bytes()).unwrap();
        assert_eq!(value.as_object().unwrap().len(), MAX_ENTRIES);
        // Invalid JSON is an error even in the part that is skipped.
        assert!(parse(format!("[{zeros}]").as_bytes()).is_err());
    }
}
