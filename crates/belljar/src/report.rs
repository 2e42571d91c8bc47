//! Prints data to stdout, and messages and errors to stderr.

use std::error::Error;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use belljar::spec::{ExecFailure, SkippedBackend, Unmet};

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

pub(crate) fn eprintln(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Prints an error, its causes and a hint.
pub(crate) fn error(error: &dyn Error, hint: Option<&str>) {
    eprintln(&format!("{BAD}error:{BAD:#} {error}"));
    let mut next = error.source();
    while let Some(inner) = next {
        cause(inner);
        next = inner.source();
    }
    if let Some(hint) = hint {
        eprintln(&format!("{BOLD}hint:{BOLD:#}  {hint}"));
    }
}

pub(crate) fn cause(what: impl std::fmt::Display) {
    eprintln(&format!("{BOLD}cause:{BOLD:#} {what}"));
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
        Some(_) => eprintln(&format!("{BAD}error:{BAD:#} {what}")),
    }
}

fn chain(causes: &[String]) {
    for (at, cause) in causes.iter().enumerate() {
        match at {
            0 => eprintln(&format!("{BAD}error:{BAD:#} {cause}")),
            _ => self::cause(cause),
        }
    }
}

fn next(fix: Option<&str>) {
    if let Some(fix) = fix {
        eprintln(&format!("{BOLD}hint:{BOLD:#}  {fix}"));
    }
}

/// Prints why the command was not executed (exit codes 126 and 127).
pub(crate) fn not_executed(name: &str, failure: &ExecFailure) {
    eprintln(&format!("{WARN}belljar:{WARN:#} {name}: {failure}"));
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

/// Joins as many names as fit into `width`, and counts the rest.
pub(crate) fn listed(names: &[String], width: usize) -> String {
    let mut shown = String::new();
    for (at, name) in names.iter().enumerate() {
        if at > 0 && shown.len() + name.len() + 2 > width {
            return format!("{shown} and {} more", names.len() - at);
        }
        if at > 0 {
            shown.push_str(", ");
        }
        shown.push_str(name);
    }
    shown
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
