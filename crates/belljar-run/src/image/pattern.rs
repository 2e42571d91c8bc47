//! One pattern of `.dockerignore`.
//!
//! It is walked through for all its meanings at once, so that no pattern takes longer than its length times
//! that of the path.

use std::ops::Deref;

#[derive(Debug)]
pub(super) struct Pattern {
    steps: Vec<Step>,
    /// `!`: what fits is in it after all.
    pub(super) takes_back: bool,
    /// What stands before the first wildcard.
    pub(super) plain: Vec<u8>,
    pub(super) has_wildcard: bool,
}

/// One step of a pattern. A character is a code point, or a byte that is none, moved out of their range.
#[derive(Debug)]
enum Step {
    One(u32),
    /// Anything but a slash.
    Any,
    /// Ranges; the flag says that it fits what is in none of them.
    Class(Vec<(u32, u32)>, bool),
    /// Any number of characters without a slash.
    Star,
    /// Any number of characters.
    Path,
    /// Any number of whole directories, none included. Takes two places: before and in it.
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

impl Pattern {
    pub(super) fn new(text: &[u8], takes_back: bool) -> Result<Self, &'static str> {
        let wildcard = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let plain = text.iter().position(wildcard).unwrap_or(text.len());
        let steps = steps(&characters(text))?;
        let has_wildcard = plain < text.len();
        Ok(Self { steps, takes_back, plain: text[..plain].to_vec(), has_wildcard })
    }

    /// The path itself, or a directory above it. What can be told from the bytes is told from them: a
    /// context has many files.
    pub(super) fn fits_or_holds(&self, bytes: &[u8], path: &impl Deref<Target = Vec<u32>>) -> bool {
        let Some(rest) = bytes.strip_prefix(self.plain.as_slice()) else { return false };
        if !self.has_wildcard {
            return rest.is_empty() || rest.starts_with(b"/");
        }
        let path: &[u32] = path;
        let ends = path.iter().enumerate().filter(|(_, c)| **c == SLASH).map(|(at, _)| at);
        let reached = self.lengths(path);
        ends.chain([path.len()]).any(|end| reached[end])
    }

    /// For each length, whether that much of the path fits.
    fn lengths(&self, path: &[u32]) -> Vec<bool> {
        let last = self.steps.len();
        let mut at = vec![false; last + 1];
        at[0] = true;
        self.skip(&mut at);
        let mut next = at.clone();
        let mut reached = vec![at[last]];
        for c in path {
            next.fill(false);
            for (place, step) in self.steps.iter().enumerate().filter(|(place, _)| at[*place]) {
                match step {
                    Step::One(one) => next[place + 1] |= one == c,
                    Step::Any => next[place + 1] |= *c != SLASH,
                    Step::Class(ranges, other) => {
                        let inside = ranges.iter().any(|(from, to)| (from..=to).contains(&c));
                        next[place + 1] |= inside != *other && *c != SLASH;
                    }
                    Step::Star => next[place] |= *c != SLASH,
                    Step::Path => next[place] = true,
                    Step::Directories => {
                        next[place + 1] = true;
                        next[place + 2] |= *c == SLASH;
                    }
                    Step::InDirectories => {
                        next[place] = true;
                        next[place + 1] |= *c == SLASH;
                    }
                }
            }
            self.skip(&mut next);
            std::mem::swap(&mut at, &mut next);
            reached.push(at[last]);
        }
        reached
    }

    /// Steps that can be nothing at all.
    fn skip(&self, at: &mut [bool]) {
        for (place, step) in self.steps.iter().enumerate() {
            match step {
                Step::Star | Step::Path if at[place] => at[place + 1] = true,
                Step::Directories if at[place] => at[place + 2] = true,
                _ => {}
            }
        }
    }
}

fn steps(text: &[u32]) -> Result<Vec<Step>, &'static str> {
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
                steps.extend([Step::Directories, Step::InDirectories]);
            } else {
                steps.push(Step::Path);
            }
        } else if c == u32::from('*') {
            steps.push(Step::Star);
        } else if c == u32::from('?') {
            steps.push(Step::Any);
        } else if c == u32::from('\\') {
            steps.push(Step::One(*text.get(at).ok_or("it ends with a backslash")?));
            at += 1;
        } else if c == u32::from('[') {
            let (class, length) = class(&text[at..])?;
            steps.push(class);
            at += length;
        } else {
            steps.push(Step::One(c));
        }
    }
    Ok(steps)
}

/// What follows a `[`, and how long it is.
fn class(text: &[u32]) -> Result<(Step, usize), &'static str> {
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
            return Ok((Step::Class(ranges, other), at + 1));
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
