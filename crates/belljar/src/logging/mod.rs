//! Turns logging on: `-v`, `-vv` and `BELLJAR_LOG`. Without them there is no subscriber.

mod filter;
mod line;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

use belljar::debug_log::{self, Destination};
use belljar::spec::env;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;

use filter::{FilterError, LogFilter};
use line::LineFormat;

static STARTED: OnceLock<Instant> = OnceLock::new();

/// The start of this process, as far as the log and timings are concerned.
pub(crate) fn process_started() -> Instant {
    *STARTED.get_or_init(Instant::now)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoggingError {
    #[error("the variable {name}: {0}", name = env::LOG)]
    Variable(FilterError),
    #[error("the variable {} is not UTF-8", env::LOG)]
    NotUtf8,
}

/// Of the command: to standard error. The flag counts more than the variable.
pub(crate) fn start(verbosity: u8) -> Result<(), LoggingError> {
    let setting = match verbosity {
        0 => variable()?,
        1 => Some("debug".to_owned()),
        _ => Some("trace".to_owned()),
    };
    let Some(setting) = setting else { return Ok(()) };
    let filter: LogFilter = setting.parse().map_err(LoggingError::Variable)?;
    if filter.is_off() {
        return Ok(());
    }
    debug_log::enable(&setting, Destination::Stderr);
    let is_terminal = io::stderr().is_terminal();
    let stderr = anstream::stderr().current_choice();
    let format = LineFormat::new(process_started(), stderr != anstream::ColorChoice::Never);
    subscribe(filter, format, move || StderrLine { is_terminal });
    Ok(())
}

/// Of a supervisor in the background and of a proxy: to the file of their run. They cannot report a wrong
/// setting; the command that started them has checked it.
pub(crate) fn start_in_background(mut args: impl Iterator<Item = OsString>) {
    let destination = match args.nth(1) {
        Some(role) if role == "__supervise" => Destination::RunDirectory,
        Some(role) if role == "__egress" => Destination::Stdout,
        _ => return,
    };
    let Ok(Some(setting)) = variable() else { return };
    let Some(filter) = setting.parse::<LogFilter>().ok().filter(|filter| !filter.is_off()) else {
        return;
    };
    debug_log::enable(&setting, destination);
    let format = LineFormat::new(process_started(), false).with_process_id();
    subscribe(filter, format, || FileLine);
}

fn variable() -> Result<Option<String>, LoggingError> {
    match std::env::var_os(env::LOG) {
        None => Ok(None),
        Some(value) => value.into_string().map(Some).map_err(|_| LoggingError::NotUtf8),
    }
}

fn subscribe<W: Write + 'static>(
    filter: LogFilter,
    format: LineFormat,
    writer: impl Fn() -> W + Send + Sync + 'static,
) {
    let layer = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .event_format(format)
        .with_ansi(false)
        .with_writer(writer);
    let subscriber = tracing_subscriber::registry().with(filter.targets()).with(layer);
    // Fails only where there is one already.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// The whole line comes in one write.
struct StderrLine {
    is_terminal: bool,
}

impl Write for StderrLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        match line.strip_suffix(b"\n") {
            // The terminal may be in raw mode.
            Some(text) if self.is_terminal => stderr.write_all(&[text, b"\r\n"].concat())?,
            _ => stderr.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct FileLine;

impl Write for FileLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        debug_log::write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
