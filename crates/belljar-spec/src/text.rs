//! A string of the operating system: any bytes but NUL, as in a path, an argument or a variable.
//!
//! Stored as a JSON string where it is UTF-8 and as `{"b64": …}` where it is not, so that a record
//! holds exactly what ran. Shown with control characters escaped, so that a name cannot drive a
//! terminal.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Any bytes but NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct OsText(OsString);

impl OsText {
    pub fn new(text: impl Into<OsString>) -> Self {
        Self(text.into())
    }

    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(OsString::from_vec(bytes))
    }

    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn to_str(&self) -> Option<&str> {
        self.0.to_str()
    }
}

/// Escapes what could move a cursor or break a line; keeps everything printable.
pub fn escape(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Bidirectional controls reorder what a person reads, so they count as control characters.
            let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}');
            // Invisible characters can hide a difference, and some programs break lines at these.
            let is_hidden = matches!(c, '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{180e}' | '\u{600}'..='\u{605}' | '\u{e0000}'..='\u{e007f}');
            if c.is_control() || reorders || is_hidden {
                shown.extend(c.escape_unicode());
            } else {
                shown.push(c);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

impl fmt::Display for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&escape(self.as_bytes()))
    }
}

impl fmt::Debug for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", escape(self.as_bytes()))
    }
}

impl From<&str> for OsText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for OsText {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<OsString> for OsText {
    fn from(text: OsString) -> Self {
        Self(text)
    }
}

impl From<&OsStr> for OsText {
    fn from(text: &OsStr) -> Self {
        Self(text.to_owned())
    }
}

impl From<PathBuf> for OsText {
    fn from(path: PathBuf) -> Self {
        Self(path.into_os_string())
    }
}

impl From<&Path> for OsText {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().to_owned())
    }
}

impl AsRef<Path> for OsText {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

impl AsRef<OsStr> for OsText {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(text) = self.to_str() {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("b64", &BASE64.encode(self.as_bytes()))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OsTextVisitor)
    }
}

struct OsTextVisitor;

impl<'de> Visitor<'de> for OsTextVisitor {
    type Value = OsText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or {\"b64\": …} for one that is not UTF-8")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OsText, E> {
        Ok(OsText::from(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OsText, A::Error> {
        let Some((key, value)) = map.next_entry::<String, String>()? else {
            return Err(de::Error::custom("an empty object is not a string"));
        };
        if key != "b64" {
            return Err(de::Error::unknown_field(&key, &["b64"]));
        }
        let bytes = BASE64.decode(value.as_bytes()).map_err(de::Error::custom)?;
        Ok(OsText::from_bytes(bytes))
    }
}
/// A command line for a message, quoted where a shell would need it.
pub fn quote_command(command: &[OsText]) -> String {
    let arguments = command.iter().map(|argument| {
        let text = argument.to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
        if !text.is_empty() && text.chars().all(plain) { text } else { quoted(&text) }
    });
    arguments.collect::<Vec<_>>().join(" ")
}

/// In single quotes, as every POSIX shell reads it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An error and its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
