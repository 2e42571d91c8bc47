//! Reads files of variables, as docker does: one `NAME=VALUE` a line, or `NAME` to pass the host's value on. No
//! quotes, no expansion: the value is taken literally.

use crate::text::{OsText, escape};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvLine {
    Set { name: String, value: OsText },
    Pass { name: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct EnvFileError {
    pub line: usize,
    pub why: String,
}

pub fn parse(content: &[u8]) -> Result<Vec<EnvLine>, EnvFileError> {
    let mut lines = Vec::new();
    for (index, line) in content.split(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let parsed = parse_assignment(line);
        lines.push(parsed.map_err(|why| EnvFileError { line: index + 1, why })?);
    }
    Ok(lines)
}

/// `NAME=VALUE` or `NAME`, as in a file and after `-e`.
pub fn parse_assignment(text: &[u8]) -> Result<EnvLine, String> {
    match text.iter().position(|b| *b == b'=') {
        Some(at) => {
            let name = check_name(&text[..at])?;
            let value = check_value(&name, &text[at + 1..])?;
            Ok(EnvLine::Set { name, value })
        }
        None => Ok(EnvLine::Pass { name: check_name(text)? }),
    }
}

/// A value has no NUL byte in it.
pub fn check_value(name: &str, value: &[u8]) -> Result<OsText, String> {
    if value.contains(&0) {
        return Err(format!("the value of {name} contains a NUL byte"));
    }
    Ok(OsText::from_bytes(value.to_vec()))
}

/// Names are UTF-8, not empty, and have no `=`, NUL or control character in them.
pub fn check_name(name: &[u8]) -> Result<String, String> {
    let shown = || escape(name);
    let text =
        std::str::from_utf8(name).map_err(|_| format!("the name \"{}\" is not UTF-8", shown()))?;
    if text.is_empty() {
        return Err("a variable's name is empty; write NAME=VALUE".into());
    }
    if text.contains(|c: char| c == '=' || c == '\0' || c.is_control() || c.is_whitespace()) {
        return Err(format!("\"{}\" is not a variable name", shown()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_as_they_stand() {
        let content = b"# note\nA=1\n\n  B=\"two words\"\r\nC\nD=\nE=a=b\xff\n";
        let set = |name: &str, value: &[u8]| EnvLine::Set {
            name: name.into(),
            value: OsText::from_bytes(value.to_vec()),
        };
        let want = vec![
            set("A", b"1"),
            set("B", b"\"two words\""),
            EnvLine::Pass { name: "C".into() },
            set("D", b""),
            set("E", b"a=b\xff"),
        ];
        assert_eq!(parse(content), Ok(want));
    }

    #[test]
    fn a_bad_line_is_told_by_its_number() {
        assert_eq!(parse(b"A=1\n=2\n").unwrap_err().line, 2);
        assert_eq!(parse(b"A=1\nB\xff=2\n").unwrap_err().line, 2);
        assert_eq!(parse(b"export A=1").unwrap_err().line, 1);
        assert!(parse(b"A=\0").is_err());
    }
}
