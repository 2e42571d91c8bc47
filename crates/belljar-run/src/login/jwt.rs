//! Reads the claims of a token, unverified: only the service that issued it can verify it, and does.

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Map, Value};

/// The claims; `None` if the text is not a JWT.
pub(super) fn claims(token: &str) -> Option<Map<String, Value>> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = BASE64URL_NOPAD.decode(payload.trim_end_matches('=').as_bytes()).ok()?;
    match serde_json::from_slice(&bytes).ok()? {
        Value::Object(claims) => Some(claims),
        _ => None,
    }
}

/// In milliseconds since 1970.
pub(super) fn expiry(token: &str) -> Option<u64> {
    let seconds = claims(token)?.get("exp")?.as_f64()?;
    (seconds > 0.0).then_some((seconds * 1000.0) as u64)
}

/// A token that says what it is: programs read its claims, and no service accepts it.
pub(super) fn placeholder(claims: &Value) -> String {
    let encode = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    let header = encode(r#"{"alg":"none","typ":"JWT"}"#);
    format!("{header}.{}.{}", encode(&claims.to_string()), encode("belljar-placeholder"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_read_and_other_texts_have_none() {
        let token = placeholder(&json!({ "exp": 1_700_000_000, "x": "y" }));
        assert_eq!(expiry(&token), Some(1_700_000_000_000));
        assert_eq!(claims(&token).unwrap()["x"], "y");
        for bad in ["", "a", "a.b", "a.b.c", "..", "a.W10.c", "a.e30.c"] {
            assert_eq!(expiry(bad), None, "{bad}");
        }
    }
}
