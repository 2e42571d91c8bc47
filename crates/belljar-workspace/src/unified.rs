//! Shows changes as lines, and as a patch in git's format.

use std::ops::Range;
use std::time::{Duration, Instant};

use belljar_spec::OsText;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::change::{Change, Facts, Kind, What};
use super::open::{OpenTree, ReviewError, read_small};

/// A larger file is not shown by lines.
const MAX_SIZE: u64 = 8 << 20;
/// Nor one of more lines.
const MAX_LINES: usize = 500_000;
/// As far as git looks for a NUL.
const LOOKED_AT: usize = 8000;
/// Lines around a change.
const CONTEXT: usize = 3;
/// Past this the lines between two changes are shown as changed too.
const DIFF_TIMEOUT: Duration = Duration::from_secs(2);

/// What differs between two versions of a text, by lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineDiff {
    pub added: usize,
    pub removed: usize,
    pub hunks: Vec<Hunk>,
}

/// Changes that stand together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Numbers of lines, from 0.
    pub before: Range<usize>,
    pub after: Range<usize>,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub sign: Sign,
    /// With its newline, where it has one.
    pub text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Same,
    Removed,
    Added,
}

impl Sign {
    pub fn character(self) -> char {
        match self {
            Self::Same => ' ',
            Self::Removed => '-',
            Self::Added => '+',
        }
    }
}

/// How a change looks by lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    Lines(LineDiff),
    /// Not text, or too large to be read as such.
    Binary,
    /// There is no content: a directory, a FIFO.
    Nothing,
}

pub fn is_binary(content: &[u8]) -> bool {
    memchr::memchr(0, &content[..content.len().min(LOOKED_AT)]).is_some()
}

/// Whether it can be shown by lines: each costs many times its bytes, and may have none.
pub fn has_few_lines(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', text).count() <= MAX_LINES
}

/// Lines end at `\n` and nowhere else.
pub fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

pub fn lines(before: &[u8], after: &[u8]) -> LineDiff {
    let (old, new) = (split(before), split(after));
    let deadline = Some(Instant::now() + DIFF_TIMEOUT);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    let mut diff = LineDiff::default();
    for group in group_diff_ops(ops, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let mut hunk = Hunk {
            before: first.old_range().start..last.old_range().end,
            after: first.new_range().start..last.new_range().end,
            lines: Vec::new(),
        };
        group.iter().for_each(|op| add(op, (&old, &new), &mut hunk.lines));
        if hunk.lines.iter().all(|line| line.sign == Sign::Same) {
            continue;
        }
        diff.added += hunk.lines.iter().filter(|line| line.sign == Sign::Added).count();
        diff.removed += hunk.lines.iter().filter(|line| line.sign == Sign::Removed).count();
        diff.hunks.push(hunk);
    }
    diff
}

fn add(op: &DiffOp, (old, new): (&[&[u8]], &[&[u8]]), lines: &mut Vec<Line>) {
    let mut push = |sign, texts: &[&[u8]]| {
        lines.extend(texts.iter().map(|text| Line { sign, text: text.to_vec() }));
    };
    match op.tag() {
        DiffTag::Equal => push(Sign::Same, &old[op.old_range()]),
        DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
            push(Sign::Removed, &old[op.old_range()]);
            push(Sign::Added, &new[op.new_range()]);
        }
    }
}

impl OpenTree {
    /// What the change is by lines. Of a replaced entry both sides are shown whole.
    pub fn shown(&self, change: &Change) -> Result<Shown, ReviewError> {
        let before = self.content_before(change)?;
        let after = self.content_after(change)?;
        Ok(match (before, after) {
            (Content::None, Content::None) => Shown::Nothing,
            (Content::Binary, _) | (_, Content::Binary) => Shown::Binary,
            (before, after) => Shown::Lines(lines(before.text(), after.text())),
        })
    }

    fn content_before(&self, change: &Change) -> Result<Content, ReviewError> {
        let path = match &change.what {
            What::Renamed { from } => from,
            _ => &change.path,
        };
        match &change.before {
            Some(facts) if facts.kind == Kind::File => {
                content(facts, self.open_before(path), |error| self.unreadable(path, error))
            }
            facts => Ok(of_link(facts)),
        }
    }

    fn content_after(&self, change: &Change) -> Result<Content, ReviewError> {
        match &change.after {
            Some(facts) if facts.kind == Kind::File => {
                let failed = |error| self.unreadable(&change.path, error);
                content(facts, self.open_after(change), failed)
            }
            facts => Ok(of_link(facts)),
        }
    }

    fn unreadable(&self, path: &OsText, error: std::io::Error) -> ReviewError {
        ReviewError::Read { path: path.clone(), error }
    }

    /// The change as git writes it. Nothing of a directory or a special file: no patch can hold those.
    pub fn patch(&self, change: &Change) -> Result<Vec<u8>, ReviewError> {
        let has_patch = |facts: &&Facts| matches!(facts.kind, Kind::File | Kind::Link);
        let before = change.before.as_ref().filter(has_patch);
        let after = change.after.as_ref().filter(has_patch);
        let from = match &change.what {
            What::Renamed { from } => from,
            _ => &change.path,
        };
        // A link that became a file is one that went and another that came.
        let is_replaced =
            matches!((before, after), (Some(one), Some(other)) if one.kind != other.kind);
        let (old, new) = (self.content_before(change)?, self.content_after(change)?);
        let mut patch = Patch { text: Vec::new(), from, to: &change.path };
        match (before, after) {
            (None, None) => {}
            (Some(before), Some(after)) if is_replaced => {
                patch.one(Some(before), None, &change.what, &old, &Content::None);
                patch.one(None, Some(after), &change.what, &Content::None, &new);
            }
            (before, after) => patch.one(before, after, &change.what, &old, &new),
        }
        Ok(patch.text)
    }
}

enum Content {
    None,
    Binary,
    Text(Vec<u8>),
}

impl Content {
    fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::None | Self::Binary => &[],
        }
    }
}

fn content(
    facts: &Facts,
    file: Result<std::fs::File, ReviewError>,
    failed: impl FnOnce(std::io::Error) -> ReviewError,
) -> Result<Content, ReviewError> {
    if facts.size > MAX_SIZE {
        return Ok(Content::Binary);
    }
    Ok(match read_small(&mut file?, MAX_SIZE).map_err(failed)? {
        Some(text) if !is_binary(&text) && has_few_lines(&text) => Content::Text(text),
        Some(_) | None => Content::Binary,
    })
}

/// What a link holds is where it leads to.
fn of_link(facts: &Option<Facts>) -> Content {
    match facts.as_ref().and_then(|facts| facts.target.as_ref()) {
        Some(target) => Content::Text(target.as_bytes().to_vec()),
        None => Content::None,
    }
}

struct Patch<'a> {
    text: Vec<u8>,
    from: &'a OsText,
    to: &'a OsText,
}

impl Patch<'_> {
    fn line(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
        self.text.push(b'\n');
    }

    fn one(
        &mut self,
        before: Option<&Facts>,
        after: Option<&Facts>,
        what: &What,
        old: &Content,
        new: &Content,
    ) {
        let (from, to) = (name("a/", self.from), name("b/", self.to));
        self.line(&format!("diff --git {from} {to}"));
        match (before, after) {
            (None, Some(after)) => self.line(&format!("new file mode {}", mode(after))),
            (Some(before), None) => self.line(&format!("deleted file mode {}", mode(before))),
            (Some(before), Some(after)) if mode(before) != mode(after) => {
                self.line(&format!("old mode {}", mode(before)));
                self.line(&format!("new mode {}", mode(after)));
            }
            _ => {}
        }
        if let What::Renamed { .. } = what {
            self.line(&format!("rename from {}", name("", self.from)));
            self.line(&format!("rename to {}", name("", self.to)));
        }
        let old_name = if before.is_some() { from } else { "/dev/null".to_owned() };
        let new_name = if after.is_some() { to } else { "/dev/null".to_owned() };
        if let (Content::Binary, _) | (_, Content::Binary) = (old, new) {
            if *what != What::Mode {
                self.line(&format!("Binary files {old_name} and {new_name} differ"));
            }
            return;
        }
        let diff = lines(old.text(), new.text());
        if diff.hunks.is_empty() {
            return;
        }
        // A name with a blank would end there.
        let end = |name: &str| if name.contains(' ') && !name.starts_with('"') { "\t" } else { "" };
        self.line(&format!("--- {old_name}{}", end(&old_name)));
        self.line(&format!("+++ {new_name}{}", end(&new_name)));
        diff.hunks.iter().for_each(|hunk| self.text.extend(hunk.to_bytes()));
    }
}

impl Hunk {
    /// Its head, and its lines.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = format!("@@ -{} +{} @@\n", range(&self.before), range(&self.after));
        let mut bytes = head.into_bytes();
        for line in &self.lines {
            bytes.push(line.sign.character() as u8);
            bytes.extend_from_slice(&line.text);
            if !line.text.ends_with(b"\n") {
                bytes.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
        bytes
    }
}

/// From 1; of no lines, the one before.
fn range(lines: &Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn mode(facts: &Facts) -> String {
    match facts.kind {
        Kind::Link => "120000".to_owned(),
        _ => format!("100{:03o}", facts.mode),
    }
}

/// In quotes where anything in it could be taken for something else.
fn name(prefix: &str, path: &OsText) -> String {
    let plain = path.to_str().filter(|text| {
        *text == belljar_spec::text::escape(text.as_bytes()) && !text.contains(['"', '\\'])
    });
    if let Some(plain) = plain {
        return format!("{prefix}{plain}");
    }
    let mut quoted = format!("\"{prefix}");
    for byte in path.as_bytes() {
        match byte {
            b'"' => quoted.push_str("\\\""),
            b'\\' => quoted.push_str("\\\\"),
            b'\n' => quoted.push_str("\\n"),
            b'\t' => quoted.push_str("\\t"),
            0x20..=0x7e => quoted.push(*byte as char),
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted.push('"');
    quoted
}
