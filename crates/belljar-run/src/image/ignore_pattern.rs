//! Matches paths against one pattern of `.dockerignore`.
//!
//! All alternatives are tracked at once, so that the time is bounded by the length of the pattern times that of the
//! path.

use std::ops::Deref;

#[derive(Debug)]
pub(super) struct IgnorePattern {
    steps: Vec<PatternStep>,
    /// `!`: matching paths are included again.
    pub(super) negated: bool,
    /// The text before the first wildcard.
    pub(super) plain: Vec<u8>,
    pub(super) has_wildcard: bool,
}

/// One step of a pattern. A character is a code point, or an invalid byte mapped above the code points.
#[derive(Debug)]
enum PatternStep {
    One(u32),
    /// Anything but a slash.
    Any,
    /// Ranges; the flag negates them.
    Class(Vec<(u32, u32)>, bool),
    /// Any number of characters without a slash.
    Star,
    /// Any number of characters.
    Path,
    /// Any number of whole directories, including none. Uses two steps: before and inside.
    Directories,
    InDirectories,
}

const SLASH: u32 = b'/' as u32;

pub(super) fn characters(bytes: &[u8]) -> Vec<u32> {
    const NO_CODE_POINT: u32 = 0x0011_0000;
    let of = |chunk: std::str::Utf8Chunk<'_>| {
        let valid: Vec<u32> = chunk.valid().chars().map(u32::from).collect();
        let invalid: Vec<u32> =
            chunk.invalid().iter().map(|byte| NO_CODE_POINT + u32::from(*byte)).collect();
        valid.into_iter().chain(invalid)
    };
    bytes.utf8_chunks().flat_map(of).collect()
}

impl IgnorePattern {
    pub(super) fn new(text: &[u8], negated: bool) -> Result<Self, &'static str> {
        let wildcard = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let plain = text.iter().position(wildcard).unwrap_or(text.len());
        let steps = steps(&characters(text))?;
        let has_wildcard = plain < text.len();
        Ok(Self { steps, negated, plain: text[..plain].to_vec(), has_wildcard })
    }

    /// Matches the path or one of its parents. Compares bytes first, which is fast: a context has many files.
    pub(super) fn matches_path_or_parent(
        &self,
        bytes: &[u8],
        path: &impl Deref<Target = Vec<u32>>,
    ) -> bool {
        let Some(rest) = bytes.strip_prefix(self.plain.as_slice()) else { return false };
        if !self.has_wildcard {
            return rest.is_empty() || rest.starts_with(b"/");
        }
        let path: &[u32] = path;
        let ends = path.iter().enumerate().filter(|(_, c)| **c == SLASH).map(|(at, _)| at);
        let reached = self.lengths(path);
        ends.chain([path.len()]).any(|end| reached[end])
    }

    /// For each length, whether a prefix of that length matches.
    fn lengths(&self, path: &[u32]) -> Vec<bool> {
        let last = self.steps.len();
        let mut at = vec![false; last + 1];
        at[0] = true;
        self.skip(&mut at);
        let mut next = at.clone();
        let mut reached = vec![at[last]];
        for c in path {
            next.fill(false);
            for (index, step) in self.steps.iter().enumerate().filter(|(index, _)| at[*index]) {
                match step {
                    PatternStep::One(one) => next[index + 1] |= one == c,
                    PatternStep::Any => next[index + 1] |= *c != SLASH,
                    PatternStep::Class(ranges, other) => {
                        let inside = ranges.iter().any(|(from, to)| (from..=to).contains(&c));
                        next[index + 1] |= inside != *other && *c != SLASH;
                    }
                    PatternStep::Star => next[index] |= *c != SLASH,
                    PatternStep::Path => next[index] = true,
                    PatternStep::Directories => {
                        next[index + 1] = true;
                        next[index + 2] |= *c == SLASH;
                    }
                    PatternStep::InDirectories => {
                        next[index] = true;
                        next[index + 1] |= *c == SLASH;
                    }
                }
            }
            self.skip(&mut next);
            std::mem::swap(&mut at, &mut next);
            reached.push(at[last]);
        }
        reached
    }

    /// Skips steps that can match the empty string.
    fn skip(&self, at: &mut [bool]) {
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                PatternStep::Star | PatternStep::Path if at[index] => at[index + 1] = true,
                PatternStep::Directories if at[index] => at[index + 2] = true,
                _ => {}
            }
        }
    }
}

fn steps(text: &[u32]) -> Result<Vec<PatternStep>, &'static str> {
    let is = |at: usize, c: char| text.get(at) == Some(&u32::from(c));
    let mut steps = Vec::new();
    let mut at = 0;
    while let Some(c) = text.get(at).copied() {
        at += 1;
        if c == u32::from('*') && is(at, '*') {
            while is(at, '*') {
                at += 1;
            }
            if is(at, '/') {
                at += 1;
                steps.extend([PatternStep::Directories, PatternStep::InDirectories]);
            } else {
                steps.push(PatternStep::Path);
            }
        } else if c == u32::from('*') {
            steps.push(PatternStep::Star);
        } else if c == u32::from('?') {
            steps.push(PatternStep::Any);
        } else if c == u32::from('\\') {
            steps.push(PatternStep::One(*text.get(at).ok_or("it ends with a backslash")?));
            at += 1;
        } else if c == u32::from('[') {
            let (class, length) = class(&text[at..])?;
            steps.push(class);
            at += length;
        } else {
            steps.push(PatternStep::One(c));
        }
    }
    Ok(steps)
}

/// Parses what follows a `[`; returns the class and its length.
fn class(text: &[u32]) -> Result<(PatternStep, usize), &'static str> {
    const OPEN: &str = "a \"[\" has no \"]\"";
    let mut at = 0;
    let other = text.first() == Some(&u32::from('^'));
    at += usize::from(other);
    let mut ranges = Vec::new();
    let one = |at: &mut usize| -> Result<u32, &'static str> {
        if text.get(*at) == Some(&u32::from('\\')) {
            *at += 1;
        }
        let c = *text.get(*at).ok_or(OPEN)?;
        *at += 1;
        Ok(c)
    };
    loop {
        if text.get(at) == Some(&u32::from(']')) && !ranges.is_empty() {
            return Ok((PatternStep::Class(ranges, other), at + 1));
        }
        let from = one(&mut at)?;
        let to = match text.get(at) == Some(&u32::from('-')) {
            true => {
                at += 1;
                one(&mut at)?
            }
            false => from,
        };
        ranges.push((from, to));
    }
}
