//! Formats an event as one line: time since the start, level, target, spans, message, fields.

use std::fmt;
use std::fmt::Write as _;
use std::time::Instant;

use anstyle::{AnsiColor, Style};
use belljar::spec::text::escape;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, Debug)]
pub(super) struct LineFormat {
    since: Instant,
    is_coloured: bool,
    /// Of a file that several processes write to.
    process: Option<u32>,
}

impl LineFormat {
    pub(super) fn new(since: Instant, is_coloured: bool) -> Self {
        Self { since, is_coloured, process: None }
    }

    pub(super) fn with_process_id(self) -> Self {
        Self { process: Some(std::process::id()), ..self }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut text = format!("{}: ", metadata.target());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            text.push_str(span.name());
            match span.extensions().get::<FormattedFields<N>>() {
                Some(fields) if !fields.is_empty() => write!(text, "{{{fields}}}: ")?,
                _ => text.push_str(": "),
            }
        }
        context.format_fields(Writer::new(&mut text), event)?;
        let elapsed = self.since.elapsed().as_secs_f64();
        write!(writer, "{elapsed:11.6} ")?;
        if let Some(process) = self.process {
            write!(writer, "[{process}] ")?;
        }
        let level = metadata.level();
        let style = if self.is_coloured { style(*level) } else { Style::new() };
        write!(writer, "{style}{level:>5}{style:#} ")?;
        // Names from inside a sandbox are among the fields: one line stays one line.
        writeln!(writer, "{}", escape(text.trim_end().as_bytes()))
    }
}

fn style(level: Level) -> Style {
    match level {
        Level::ERROR => AnsiColor::Red.on_default(),
        Level::WARN => AnsiColor::Yellow.on_default(),
        Level::INFO => AnsiColor::Green.on_default(),
        Level::DEBUG => AnsiColor::Blue.on_default(),
        Level::TRACE => Style::new().dimmed(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Collected {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_with_its_spans_and_fields() {
        let collected = Collected::default();
        let writer = collected.clone();
        let format = LineFormat::new(Instant::now(), false);
        let layer = tracing_subscriber::fmt::layer()
            .event_format(format)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let host = "evil\n\u{1b}[2J.example";
            let _outer = tracing::info_span!("launch", run = "id").entered();
            let _inner = tracing::info_span!("bind").entered();
            tracing::info!(%host, port = 443, "asked");
        });
        let text = String::from_utf8(collected.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(
            text.contains(" INFO belljar::logging::line::tests: launch{run=\"id\"}: bind: asked")
        );
        assert!(text.contains("port=443") && !text.contains('\u{1b}'), "{text:?}");
        assert!(text.trim_start().starts_with("0.0"), "{text:?}");
    }
}
