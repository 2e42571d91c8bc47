//! An agent's output that was stored, read once more as it was while it came: for tools that work on records.

use belljar_spec::manifest::AgentKind;

use super::{Listener, adapter};

/// As much as comes out of a pipe at once.
const PIECE: usize = 16 << 10;

/// What was found in an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub lines: u64,
    /// Pieces of news, each of which was an event.
    pub news: u64,
    /// Lines that the format does not know.
    pub unparsed: u64,
}

/// Reads standard output of an agent of that kind, from its first byte to its end.
pub fn parsed(kind: AgentKind, output: &[u8]) -> Parsed {
    let mut listener = Listener::new(adapter(kind).reader());
    let mut found = Parsed::default();
    for piece in output.chunks(PIECE) {
        found.lines += memchr::memchr_iter(b'\n', piece).count() as u64;
        found.news += listener.feed(piece).len() as u64;
    }
    found.lines += u64::from(output.last().is_some_and(|last| *last != b'\n'));
    found.news += listener.finish().len() as u64;
    found.unparsed = listener.summary().unparsed;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_the_same_in_one_piece_and_in_many() {
        let fixture = include_bytes!("fixtures/codex.jsonl");
        let once = parsed(AgentKind::Codex, fixture);
        assert_eq!((once.lines, once.unparsed), (18, 0));
        assert!(once.news > 10, "{once:?}");
        let many = parsed(AgentKind::Codex, &fixture.repeat(100)); // lines lie across pieces
        assert_eq!((many.lines, many.unparsed), (1800, 0));
        assert!(many.news > 90 * once.news, "{many:?}");
    }

    #[test]
    fn what_makes_no_sense_is_counted() {
        let found = parsed(AgentKind::Claude, b"{\"type\":\"system\"}\n{oops\n\nno end");
        assert_eq!((found.lines, found.unparsed, found.news), (4, 2, 0));
        assert_eq!(parsed(AgentKind::Claude, b""), Parsed::default());
    }
}
