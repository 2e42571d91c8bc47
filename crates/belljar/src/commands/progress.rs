//! Draws a progress line for image downloads, and removes it at the end.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar::run::PullProgress;

/// Redrawing more often is not visible.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const DEFAULT_WIDTH: usize = 80;
const CLEAR: &str = "\r\x1b[K";

/// The progress line; drawn only on a terminal.
#[derive(Debug)]
pub(crate) struct PullLine {
    wanted: bool,
    drawn: Mutex<Option<Instant>>,
}

impl PullLine {
    pub(crate) fn new(wanted: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        let wanted = wanted && !dumb && std::io::stderr().is_terminal();
        Self { wanted, drawn: Mutex::new(None) }
    }

    /// Removes the line, so that other text can be printed.
    pub(crate) fn clear(&self) {
        if let Ok(mut drawn) = self.drawn.lock()
            && drawn.take().is_some()
        {
            put(CLEAR);
        }
    }
}

impl PullProgress for PullLine {
    fn fetched(&self, image: &str, bytes: u64, of: u64) {
        let Ok(mut drawn) = self.drawn.lock() else { return };
        if !self.wanted || drawn.is_some_and(|last| last.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        *drawn = Some(Instant::now());
        put(&format!("{CLEAR}{}", line(image, bytes, of, width())));
    }

    fn done(&self) {
        self.clear();
    }
}

fn put(text: &str) {
    let mut to = std::io::stderr();
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush()); // the progress line is optional
}

fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|width| *width > 0)
        .unwrap_or(DEFAULT_WIDTH)
}

/// On a narrow terminal the image's name is cut, the numbers are not.
fn line(image: &str, bytes: u64, of: u64, width: usize) -> String {
    const BAR: u128 = 20;
    let full = (u128::from(bytes.min(of)) * BAR).checked_div(of.into()).unwrap_or(0);
    let bar: String = (0..BAR).map(|at| if at < full { '=' } else { ' ' }).collect();
    let numbers = format!(" [{bar}] {} of {}", amount(bytes), amount(of));
    let begin = "fetching ";
    let room = width.saturating_sub(begin.len() + numbers.chars().count() + 1);
    let name: String = match image.chars().count() <= room {
        true => image.to_owned(),
        false => image.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    };
    let whole = format!("{begin}{name}{numbers}");
    // A line that wraps could not be removed.
    whole.chars().take(width.saturating_sub(1)).collect()
}

fn amount(bytes: u64) -> String {
    const MEBIBYTE: f64 = (1 << 20) as f64;
    match bytes as f64 / MEBIBYTE {
        big if big >= 1024.0 => format!("{:.1} GiB", big / 1024.0),
        small => format!("{small:.1} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_its_terminal() {
        let shown = line("debian:stable-slim", 5 << 20, 20 << 20, 80);
        assert_eq!(shown, "fetching debian:stable-slim [=====               ] 5.0 MiB of 20.0 MiB");
        for width in [1, 10, 40, 60, 79] {
            let long = line(&"x".repeat(300), 3 << 30, u64::MAX, width);
            assert!(long.chars().count() < width.max(1), "{width}: {long}");
        }
        assert!(line("x", 1, 0, 80).contains("[                    ]"));
    }
}
