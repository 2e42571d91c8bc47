//! Parses stored agent output again, for tools that work on records.

use belljar_spec::manifest::AgentKind;

use super::{OutputParser, adapter};

/// The size of one read from a pipe.
const CHUNK: usize = 16 << 10;

/// Counts of what an output contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCounts {
    pub lines: u64,
    /// Events that were recorded for it.
    pub events: u64,
    /// Lines that are not in the format.
    pub unparsed: u64,
}

/// Parses the whole standard output of an agent of that kind.
pub fn count_output(kind: AgentKind, output: &[u8]) -> OutputCounts {
    let mut parser = OutputParser::new(adapter(kind).reader());
    let mut found = OutputCounts::default();
    for chunk in output.chunks(CHUNK) {
        found.lines += memchr::memchr_iter(b'\n', chunk).count() as u64;
        found.events += parser.feed(chunk).len() as u64;
    }
    found.lines += u64::from(output.last().is_some_and(|last| *last != b'\n'));
    found.events += parser.finish().len() as u64;
    found.unparsed = parser.summary().unparsed;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_the_same_in_one_piece_and_in_many() {
        let fixture = include_bytes!("fixtures/codex.jsonl");
        let once = count_output(AgentKind::Codex, fixture);
        assert_eq!((once.lines, once.unparsed), (18, 0));
        assert!(once.events > 10, "{once:?}");
        let many = count_output(AgentKind::Codex, &fixture.repeat(100)); // lines cross chunk boundaries
        assert_eq!((many.lines, many.unparsed), (1800, 0));
        assert!(many.events > 90 * once.events, "{many:?}");
    }

    #[test]
    fn what_makes_no_sense_is_counted() {
        let found = count_output(AgentKind::Claude, b"{\"type\":\"system\"}\n{oops\n\nno end");
        assert_eq!((found.lines, found.unparsed, found.events), (4, 2, 0));
        assert_eq!(count_output(AgentKind::Claude, b""), OutputCounts::default());
    }
}
