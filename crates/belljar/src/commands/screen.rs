//! Escapes a sandbox's output for the user's terminal, so that it cannot control the terminal.

use belljar::spec::text::escape;

/// Holds back what the next piece may complete: a cut character, or the first half of a line ending.
#[derive(Debug, Default)]
pub(super) struct Escaper {
    held: Vec<u8>,
}

impl Escaper {
    pub(super) fn escaped(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let whole = all.len() - unfinished(&all);
        self.held = all.split_off(whole);
        shown(&all)
    }

    /// Returns what is still held back.
    pub(super) fn rest(&mut self) -> String {
        shown(&std::mem::take(&mut self.held))
    }
}

/// Newlines and tabs stay; a carriage return right before a newline is dropped.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let (line, end) = match line.strip_suffix(b"\n") {
            Some(line) => (line.strip_suffix(b"\r").unwrap_or(line), "\n"),
            None => (line, ""),
        };
        for (at, cell) in line.split(|byte| *byte == b'\t').enumerate() {
            if at > 0 {
                text.push('\t');
            }
            text.push_str(&escape(cell));
        }
        text.push_str(end);
    }
    text
}

/// How many bytes at the end may be the start of a character or a line ending.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    match std::str::from_utf8(tail) {
        Ok(_) => 0,
        Err(_) => {
            // The last byte that starts a multi-byte character.
            let Some(at) = tail.iter().rposition(|byte| *byte >= 0xc0) else { return 0 };
            match std::str::from_utf8(&tail[at..]) {
                Err(error) if error.error_len().is_none() => tail.len() - at,
                _ => 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: &[&[u8]]) -> String {
        let mut escaper = Escaper::default();
        let mut text: String = pieces.iter().map(|piece| escaper.escaped(piece)).collect();
        text.push_str(&escaper.rest());
        text
    }

    #[test]
    fn control_characters_are_escaped() {
        let hostile = b"a\x1b]0;title\x07b\r\x9b2J\xc2\x9b\tc\n\x7f";
        let shown = pieces(&[hostile]);
        assert!(shown.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{shown:?}");
        assert_eq!(shown, "a\\u{1b}]0;title\\u{7}b\\u{d}\\x9b2J\\u{9b}\tc\n\\u{7f}");
    }

    #[test]
    fn pieces_can_be_cut_anywhere() {
        let text = "zwölf €uro 🦀\r\nund\tmehr\r\n".as_bytes();
        let whole = "zwölf €uro 🦀\nund\tmehr\n";
        for cut in 0..text.len() {
            assert_eq!(pieces(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(pieces(&single), whole);
        assert_eq!(pieces(&[b"\xf0\x9f"]), "\\xf0\\x9f", "never completed");
    }
}
