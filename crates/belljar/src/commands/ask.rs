//! Questions to whoever sits there.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::report::BOLD;

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(
        "nobody can be asked here: the input is no terminal; use --yes, or look first with --dry-run"
    )]
    NoTerminal,
    #[error("cannot read the answer")]
    Read(#[source] io::Error),
}

/// One line; `None` at the end of the input.
pub(super) fn answer(question: &str) -> Result<Option<String>, AskError> {
    let mut out = anstream::stderr();
    let _ = write!(out, "{BOLD}{question}{BOLD:#} ");
    let _ = out.flush();
    let mut line = String::new();
    // Bytes that are no text are no answer.
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(line.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(String::new())),
        Err(error) => Err(AskError::Read(error)),
    }
}

/// Anything but a clear yes is a no.
pub(super) fn confirm(question: &str) -> Result<bool, AskError> {
    if !io::stdin().is_terminal() {
        return Err(AskError::NoTerminal);
    }
    let answer = answer(&format!("{question} [y/N]"))?.unwrap_or_default();
    Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
}
