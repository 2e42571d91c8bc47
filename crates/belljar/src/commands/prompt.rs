//! Asks the user questions on the terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::report::BOLD;

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("standard input is not a terminal, so nothing can be asked; use --yes")]
    NoTerminal,
    #[error("cannot read the answer")]
    Read(#[source] io::Error),
}

/// Reads one line as the answer; `None` at the end of the input.
pub(super) fn answer(question: &str) -> Result<Option<String>, AskError> {
    let mut out = anstream::stderr();
    let _ = write!(out, "{BOLD}{question}{BOLD:#} ");
    let _ = out.flush();
    let mut line = String::new();
    // Bytes that are not UTF-8 count as an empty answer.
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(line.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(String::new())),
        Err(error) => Err(AskError::Read(error)),
    }
}

/// Asks for a yes; no answer within the time counts as no.
pub(super) fn confirm_within(span: Duration, question: &str) -> Result<bool, AskError> {
    let stdin = io::stdin();
    let mut out = anstream::stderr();
    let _ = write!(out, "{BOLD}{question} [y/N]{BOLD:#} ");
    let _ = out.flush();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let span = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: 0 };
    if poll(&mut fds, Some(&span)).unwrap_or(0) == 0 {
        let _ = writeln!(out);
        return Ok(false);
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(AskError::Read)?;
    Ok(is_yes(&line))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Asks for a yes; anything else counts as no.
pub(super) fn confirm(question: &str) -> Result<bool, AskError> {
    if !io::stdin().is_terminal() {
        return Err(AskError::NoTerminal);
    }
    let answer = answer(&format!("{question} [y/N]"))?.unwrap_or_default();
    Ok(is_yes(&answer))
}
