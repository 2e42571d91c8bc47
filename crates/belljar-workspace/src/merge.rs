//! Three-way merge of texts, line by line.
//!
//! Two changes that touch the same lines, or lines next to each other, and are not alike are a conflict: whoever
//! reads the result would not see that they were made apart.

use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use super::unified;

/// A text made to be slow to compare gets a coarser comparison after this, and perhaps a conflict more.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of three versions of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Merged {
    Clean(Vec<u8>),
    /// Lines that both have changed, each in its own way. Never empty.
    Conflict(Vec<Clash>),
}

/// Lines that were changed twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The first line in the version of the real tree; lines count from 1.
    pub line: usize,
    pub base: Vec<u8>,
    pub ours: Vec<u8>,
    pub theirs: Vec<u8>,
}

/// Whether lines mean anything in it.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && unified::has_few_lines(bytes)
}

/// `ours` and `theirs` were both made from `base`.
pub(crate) fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Merged {
    let [base, ours, theirs] = [base, ours, theirs].map(lines);
    let mut our_edits = edits(&base, &ours).into_iter().peekable();
    let mut their_edits = edits(&base, &theirs).into_iter().peekable();
    let (mut merged, mut clashes) = (Vec::new(), Vec::new());
    let mut done = 0;
    let mut our_line = 0;
    loop {
        let starts = [our_edits.peek(), their_edits.peek()].map(|edit| edit.map(|e| e.base.start));
        let Some(start) = starts.into_iter().flatten().min() else { break };
        copy(&mut merged, &base[done..start]);
        our_line += start - done;
        // Grows while the next edit of either side begins inside it or at its end.
        let mut end = start;
        let mut group = [Side::new(), Side::new()];
        loop {
            if let Some(edit) = our_edits.next_if(|edit| edit.base.start <= end) {
                end = end.max(edit.base.end);
                group[0].take(edit);
            } else if let Some(edit) = their_edits.next_if(|edit| edit.base.start <= end) {
                end = end.max(edit.base.end);
                group[1].take(edit);
            } else {
                break;
            }
        }
        let [our, their] = &group;
        let our_lines = our.lines(&base, &ours, start..end);
        let their_lines = their.lines(&base, &theirs, start..end);
        if our.edits.is_empty() {
            copy(&mut merged, &their_lines);
        } else if their.edits.is_empty() || our_lines == their_lines {
            copy(&mut merged, &our_lines);
        } else {
            clashes.push(Clash {
                line: our_line + 1,
                base: base[start..end].concat(),
                ours: our_lines.concat(),
                theirs: their_lines.concat(),
            });
        }
        our_line += our_lines.len();
        done = end;
    }
    copy(&mut merged, &base[done..]);
    if clashes.is_empty() { Merged::Clean(merged) } else { Merged::Conflict(clashes) }
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn copy(to: &mut Vec<u8>, lines: &[&[u8]]) {
    lines.iter().for_each(|line| to.extend_from_slice(line));
}

/// Lines of the base that became other lines.
#[derive(Clone, Debug)]
struct Edit {
    base: Range<usize>,
    side: Range<usize>,
}

fn edits(base: &[&[u8]], side: &[&[u8]]) -> Vec<Edit> {
    let deadline = Instant::now() + COMPARE_TIMEOUT;
    let found = capture_diff_slices_deadline(Algorithm::Myers, base, side, Some(deadline));
    let mut edits: Vec<Edit> = Vec::new();
    for op in found {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        let edit = Edit { base: op.old_range(), side: op.new_range() };
        match edits.last_mut() {
            Some(last) if last.base.end == edit.base.start && last.side.end == edit.side.start => {
                last.base.end = edit.base.end;
                last.side.end = edit.side.end;
            }
            _ => edits.push(edit),
        }
    }
    edits
}

/// What one side did in a stretch of the base.
struct Side {
    edits: Vec<Edit>,
}

impl Side {
    fn new() -> Self {
        Self { edits: Vec::new() }
    }

    fn take(&mut self, edit: Edit) {
        self.edits.push(edit);
    }

    /// The stretch as this side has it.
    fn lines<'a>(
        &self,
        base: &[&'a [u8]],
        side: &[&'a [u8]],
        stretch: Range<usize>,
    ) -> Vec<&'a [u8]> {
        let mut lines = Vec::new();
        let mut done = stretch.start;
        for edit in &self.edits {
            lines.extend_from_slice(&base[done..edit.base.start]);
            lines.extend_from_slice(&side[edit.side.clone()]);
            done = edit.base.end;
        }
        lines.extend_from_slice(&base[done..stretch.end]);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec!["a\n", "b\n", "c\n", "\n", "d e\n", "\u{1b}[2J\n"]);
        (prop::collection::vec(line, 0..12), prop::sample::select(vec!["", "end", "a"]))
            .prop_map(|(lines, end)| (lines.concat() + end).into_bytes())
    }

    fn clean(merged: Merged) -> Vec<u8> {
        match merged {
            Merged::Clean(text) => text,
            Merged::Conflict(clashes) => panic!("{clashes:?}"),
        }
    }

    proptest! {
        #[test]
        fn one_side_alone_wins(base in text(), side in text()) {
            prop_assert_eq!(merge(&base, &side, &base), Merged::Clean(side.clone()));
            prop_assert_eq!(merge(&base, &base, &side), Merged::Clean(side.clone()));
            prop_assert_eq!(merge(&base, &side, &side), Merged::Clean(side));
        }

        #[test]
        fn it_does_not_matter_who_is_who(base in text(), a in text(), b in text()) {
            match (merge(&base, &a, &b), merge(&base, &b, &a)) {
                (Merged::Clean(one), Merged::Clean(other)) => prop_assert_eq!(one, other),
                (Merged::Conflict(one), Merged::Conflict(other)) => {
                    prop_assert_eq!(one.len(), other.len());
                    for (one, other) in one.iter().zip(&other) {
                        prop_assert_eq!(&one.base, &other.base);
                        prop_assert_eq!(&one.ours, &other.theirs);
                        prop_assert_ne!(&one.ours, &one.theirs);
                    }
                }
                (one, other) => prop_assert!(false, "{:?} and {:?}", one, other),
            }
        }

        #[test]
        fn edits_apart_from_each_other_are_both_there(
            first in 0_usize..30, gap in 1_usize..30, rest in 1_usize..30, more in 0_usize..3,
        ) {
            let length = first + gap + 1 + rest;
            let base: Vec<String> = (0..length).map(|at| format!("line {at}\n")).collect();
            let (mut ours, mut theirs) = (base.clone(), base.clone());
            ours[first] = "ours\n".repeat(more);
            theirs[first + gap + 1] = "theirs\n".to_owned();
            let mut both = base.clone();
            both[first] = ours[first].clone();
            both[first + gap + 1] = theirs[first + gap + 1].clone();
            let merged = merge(
                base.concat().as_bytes(), ours.concat().as_bytes(), theirs.concat().as_bytes(),
            );
            prop_assert_eq!(clean(merged), both.concat().into_bytes());
        }
    }

    #[test]
    fn lines_that_both_changed_clash_and_are_shown() {
        let merged = merge(b"1\n2\n3\n4\n", b"0\n1\nours\n3\n4\n", b"1\ntheirs\n3\n4\n");
        let Merged::Conflict(clashes) = merged else { panic!("{merged:?}") };
        let [clash] = &clashes[..] else { panic!("{clashes:?}") };
        assert_eq!(clash.line, 3);
        assert_eq!(clash.base, b"2\n");
        assert_eq!(clash.ours, b"ours\n");
        assert_eq!(clash.theirs, b"theirs\n");
    }

    #[test]
    fn neighbours_clash() {
        let apart = merge(b"1\n2\n3\n", b"one\n2\n3\n", b"1\n2\nthree\n");
        assert_eq!(clean(apart), b"one\n2\nthree\n");
        assert!(matches!(merge(b"1\n2\n3\n", b"one\n2\n3\n", b"1\ntwo\n3\n"), Merged::Conflict(_)));
    }

    #[test]
    fn a_text_made_to_be_slow_is_compared_within_bounds() {
        let lines = |seed: u64| {
            let mut state = seed;
            let mut text = Vec::new();
            for _ in 0..200_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.extend_from_slice(if state >> 63 == 0 { b"a\n" } else { b"b\n" });
            }
            text
        };
        let began = Instant::now();
        let _ = merge(&lines(1), &lines(2), &lines(3));
        assert!(began.elapsed() < COMPARE_TIMEOUT * 10, "{:?}", began.elapsed());
    }
}
