//! Escapes, wraps and cuts untrusted text for the terminal.

use belljar::spec::text::escape;

/// How much of a text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Columns of a line, its indent included.
    pub(super) width: usize,
    pub(super) lines: usize,
}

/// The lines that fit, and the number of those that do not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) lines: Vec<String>,
    pub(super) more: usize,
}

/// Wraps a text, and escapes control characters. The first line begins with `first`, the others with as many
/// blanks. Line breaks stay; empty lines at both ends are dropped, and several in a row become one.
pub(super) fn wrapped(text: &str, first: &str, room: Room) -> Shown {
    let indent = " ".repeat(columns(first));
    let width = room.width.saturating_sub(indent.len()).max(16);
    let (mut lines, mut more) = (Vec::new(), 0);
    let mut was_empty = true;
    for line in text.trim_end().lines() {
        let line = line.trim_end();
        if line.is_empty() && std::mem::replace(&mut was_empty, true) {
            continue;
        }
        was_empty = line.is_empty();
        for piece in broken(&clean(line), width) {
            if lines.len() >= room.lines {
                more += 1;
                continue;
            }
            let begin = if lines.is_empty() { first } else { indent.as_str() };
            lines.push(format!("{begin}{piece}").trim_end().to_owned());
        }
    }
    Shown { lines, more }
}

/// Puts a text on one line, cut at `most` columns.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut used = 0;
    for c in clean(&text.split_whitespace().collect::<Vec<_>>().join(" ")).chars() {
        used += column_count(c);
        if used > most {
            while columns(&shown) >= most && shown.pop().is_some() {}
            shown.push('…');
            return shown;
        }
        shown.push(c);
    }
    shown
}

fn clean(line: &str) -> String {
    escape(line.replace('\t', "    ").as_bytes())
}

/// Breaks a line at words; the pieces keep its indent.
fn broken(line: &str, width: usize) -> Vec<String> {
    if columns(line) <= width {
        return vec![line.to_owned()];
    }
    let body = line.trim_start_matches(' ');
    let indent = " ".repeat((line.len() - body.len()).min(width / 2));
    let (mut pieces, mut piece, mut used) = (Vec::new(), indent.clone(), indent.len());
    for word in body.split_inclusive(' ') {
        if used > indent.len() && used + columns(word.trim_end()) > width {
            pieces.push(std::mem::replace(&mut piece, indent.clone()));
            used = indent.len();
        }
        for c in word.chars() {
            let wide = column_count(c);
            if used + wide > width && c != ' ' {
                pieces.push(std::mem::replace(&mut piece, indent.clone()));
                used = indent.len();
            }
            if used + wide <= width {
                piece.push(c);
                used += wide;
            }
        }
    }
    pieces.push(piece);
    pieces
}

pub(super) fn columns(text: &str) -> usize {
    text.chars().map(column_count).sum()
}

/// Columns on a terminal: East Asian characters and emoji take two.
fn column_count(c: char) -> usize {
    match u32::from(c) {
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(width: usize, text: &str) -> Vec<String> {
        wrapped(text, "* ", Room { width, lines: 100 }).lines
    }

    #[test]
    fn words_are_kept_whole_and_long_ones_are_broken() {
        assert_eq!(at(20, "one two three four five"), ["* one two three four", "  five"]);
        assert_eq!(
            at(20, &"x".repeat(30)),
            [format!("* {}", "x".repeat(18)), format!("  {}", "x".repeat(12))]
        );
        assert_eq!(at(20, "fn a() {\n    body();\n}"), ["* fn a() {", "      body();", "  }"]);
        assert_eq!(at(20, "\n\na\n\n\n\nb\n\n"), ["* a", "", "  b"]);
        assert_eq!(at(20, "漢字漢字漢字漢字漢字"), ["* 漢字漢字漢字漢字漢", "  字"]);
    }

    #[test]
    fn no_line_is_wider_than_there_is_room() {
        let text = "a 漢字 \u{1b}[31mred\u{202e} verylongwordverylongwordverylongword\tb";
        for width in 18..60 {
            for line in at(width, text) {
                assert!(columns(&line) <= width, "{width}: {line:?}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let shown = wrapped("1\n2\n3\n4\n5", "", Room { width: 80, lines: 2 });
        assert_eq!((shown.lines.len(), shown.more), (2, 3));
        assert_eq!(one_line("a  b\nc", 80), "a b c");
        assert_eq!(one_line("0123456789", 10), "0123456789");
        assert_eq!(one_line("0123456789a", 10), "012345678…");
        assert_eq!(one_line("漢字漢字漢字", 10), "漢字漢字…");
        assert_eq!(one_line("\u{1b}]0;x\u{7}", 80), "\\u{1b}]0;x\\u{7}");
    }
}
