//! Prints data to stdout, and messages and errors to stderr.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use belljar::spec::{SkippedBackend, Unmet};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// Writes data. A closed pipe ends the output, not the program.
pub(crate) fn out(text: &str) {
    let _ = anstream::stdout().write_all(text.as_bytes());
    let _ = anstream::stdout().flush();
}

/// Prints a message; a terminal gets its lines wrapped by words.
pub(crate) fn eprintln(text: &str) {
    let _ = match message_width() {
        Some(width) => writeln!(anstream::stderr(), "{}", wrapped_at(text, width)),
        None => writeln!(anstream::stderr(), "{text}"),
    };
}

/// Prints an error, its causes and a hint. A cause that the line above it contains is not repeated.
pub(crate) fn error(error: &dyn Error, hint: Option<&str>) {
    let mut above = error.to_string();
    error_line(&above);
    let mut next = error.source();
    while let Some(inner) = next {
        let text = inner.to_string();
        if !above.contains(&text) {
            cause(&text);
            above = text;
        }
        next = inner.source();
    }
    if let Some(hint) = hint {
        self::hint(hint);
    }
}

pub(crate) fn error_line(what: &str) {
    eprintln(&format!("{BAD}error:{BAD:#} {what}"));
}

pub(crate) fn cause(what: impl std::fmt::Display) {
    eprintln(&format!("{BOLD}cause:{BOLD:#} {what}"));
}

/// Prints what to do next.
pub(crate) fn hint(what: impl std::fmt::Display) {
    eprintln(&format!("{BOLD}hint:{BOLD:#}  {what}"));
}

/// Warns about a backend that was tried and skipped.
pub(crate) fn skipped_backend(step: &SkippedBackend) {
    let SkippedBackend { backend, why, .. } = step;
    eprintln(&format!("{WARN}warning:{WARN:#} skipped the {backend} backend: {why}"));
}

/// Prints any error of a command. Some errors of the library include their causes in the text.
pub(crate) fn failure(what: &(dyn Error + 'static)) {
    use belljar::Error as Library;
    match what.downcast_ref::<Library>() {
        Some(Library::Refused { missing, causes, fix }) => {
            chain(causes);
            unmet(missing);
            next(fix.as_deref());
        }
        Some(Library::Start { causes, fix }) => {
            chain(causes);
            next(fix.as_deref());
        }
        Some(Library::Config(_) | Library::Home(_)) | None => error(what, None),
        Some(_) => error_line(&what.to_string()),
    }
}

fn chain(causes: &[String]) {
    let mut above = "";
    for (at, cause) in causes.iter().enumerate() {
        match at {
            0 => error_line(cause),
            _ if above.contains(cause.as_str()) => continue,
            _ => self::cause(cause),
        }
        above = cause;
    }
}

fn next(fix: Option<&str>) {
    if let Some(fix) = fix {
        hint(fix);
    }
}

/// Prints why the command was not executed (exit codes 126 and 127).
pub(crate) fn not_executed(name: &str, why: &str) {
    eprintln(&format!("{WARN}belljar:{WARN:#} {name}: {why}"));
}

/// Prints the clauses that stopped a launch, each with its fix.
pub(crate) fn unmet(missing: &[Unmet]) {
    for Unmet { clause, enforcement } in missing {
        let why = folded(&format!("{}: {}", enforcement.status(), enforcement.reason()), 21);
        eprintln(&format!("  {BOLD}{clause:<18}{BOLD:#} {why}"));
        if let Some(fix) = enforcement.fix() {
            eprintln(&format!("  {:<18} fix: {}", "", folded(fix, 26)));
        }
    }
}

pub(crate) fn json(value: &impl serde::Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    out(&format!("{text}\n"));
    Ok(())
}

/// The columns that messages may use: no limit where stderr is no terminal, so that a message is one line.
fn message_width() -> Option<usize> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let columns = columns.map_or(80, |size| usize::from(size.ws_col));
    Some(if columns == 0 { 80 } else { columns.clamp(40, 80) })
}

/// Labels that the lines of a message are aligned after.
const LABELS: [&str; 6] = ["error:", "cause:", "hint:", "warning:", "fix:", "next:"];

/// Wraps each line of a message by words. A carriage return at its end is for a terminal in raw mode.
fn wrapped_at(message: &str, width: usize) -> String {
    let (message, line_end) = match message.strip_suffix('\r') {
        Some(message) => (message, "\r\n"),
        None => (message, "\n"),
    };
    let mut lines = Vec::new();
    for line in message.split('\n') {
        if columns(line) <= width {
            lines.push(line.to_owned());
            continue;
        }
        let indent = indent_of(line);
        let (mut current, mut used, mut has_word) = (String::new(), 0, false);
        for piece in line.split_inclusive(' ') {
            let word = piece.trim_end_matches(' ');
            if has_word && !word.is_empty() && used + columns(word) > width {
                lines.push(current.trim_end_matches(' ').to_owned());
                (current, used, has_word) = (" ".repeat(indent), indent, false);
            }
            has_word |= !word.is_empty();
            current.push_str(piece);
            used += columns(piece);
        }
        lines.push(current);
    }
    let end = if line_end == "\r\n" { "\r" } else { "" };
    lines.join(line_end) + end
}

/// Where the continuation lines of a line begin.
fn indent_of(line: &str) -> usize {
    let plain = anstream::adapter::strip_str(line).to_string();
    let blanks = |text: &str| text.len() - text.trim_start_matches(' ').len();
    let label = LABELS.iter().find(|label| plain.starts_with(**label));
    match label {
        Some(label) => label.len() + blanks(&plain[label.len()..]),
        None => blanks(&plain).max(2),
    }
}

/// Columns on a terminal, without escape sequences.
fn columns(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().chars().count()
}

/// Wraps a text at 80 columns.
pub(crate) fn folded(sentence: &str, indent: usize) -> String {
    let width = 79 - indent;
    let mut text = String::new();
    let mut column = 0;
    for word in sentence.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_wrapped_by_words() {
        let text = "error: one two three four five six seven eight nine ten";
        let shown = wrapped_at(text, 30);
        assert_eq!(
            shown,
            "error: one two three four five\n       six seven eight nine\n       ten"
        );
        let coloured = format!("{BOLD}hint:{BOLD:#}  one two three four five six");
        let shown = wrapped_at(&coloured, 24);
        assert_eq!(shown, format!("{BOLD}hint:{BOLD:#}  one two three\n       four five six"));
        assert_eq!(wrapped_at("short\n  | an excerpt", 30), "short\n  | an excerpt");
        let long = "x".repeat(50);
        assert_eq!(wrapped_at(&format!("a {long} b"), 30), format!("a\n  {long}\n  b"));
        assert_eq!(wrapped_at("  fix: one two three\r", 12), "  fix: one\r\n  two three\r");
    }
}
