//! Parses rules and matches commands against them.
//!
//! A rule looks like a command line. `*` is one word, `**` is any number of words, and within a word `*` is any
//! text. Options match in any position: `rm -rf` is also `rm -r -f` and `rm -fr`. The program is
//! compared by its file name. Commands joined by `|` match in one pipeline, in this order. `> FILE` matches a redirect
//! to such a file.

use super::word::Word;

/// With more letters, it is one long option with one dash, such as `-delete`.
const MAX_LETTERS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// One command, or several of one pipeline in this order.
    Commands(Vec<CommandPattern>),
    /// A redirect to such a file.
    Writes(Glob),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandPattern {
    program: Part,
    letters: Vec<char>,
    options: Vec<Glob>,
    operands: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`
    Any,
    One(Glob),
}

/// A word with `*` in it; `\*` is the star itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Star,
}

impl Glob {
    fn parse(text: &str) -> Self {
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        let mut characters = text.chars();
        while let Some(one) = characters.next() {
            match one {
                '\\' => plain.extend(characters.next()),
                '*' => {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(Piece::Star);
                }
                one => plain.push(one),
            }
        }
        pieces.push(Piece::Text(plain));
        Self(pieces)
    }

    fn fits(&self, text: &str) -> bool {
        let mut texts = self.0.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Star => None,
        });
        let first = texts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut others: Vec<&str> = texts.collect();
        let Some(last) = others.pop() else { return rest.is_empty() };
        for part in others {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// As written, or as a normalized path.
    fn fits_word(&self, word: &Word) -> bool {
        self.fits(word.raw()) || self.fits(&word.clean())
    }
}

impl Part {
    fn parse(text: &str) -> Self {
        if text == "**" { Self::Any } else { Self::One(Glob::parse(text)) }
    }
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(target) = text.trim().strip_prefix('>') {
            let mut words = target.split_whitespace();
            return match (words.next(), words.next()) {
                (Some(target), None) => Ok(Self::Writes(Glob::parse(target))),
                _ => Err("expected one file after >".to_owned()),
            };
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let commands = words.split(|word| *word == "|").map(CommandPattern::parse);
        Ok(Self::Commands(commands.collect::<Result<_, _>>()?))
    }

    /// The index of the command that matches, alone or together with the commands before it in the pipeline.
    pub(crate) fn find(&self, pipeline: &[&[Word]]) -> Option<usize> {
        let Self::Commands(patterns) = self else { return None };
        let mut wanted = patterns.iter();
        let mut pattern = wanted.next()?;
        for (at, command) in pipeline.iter().enumerate() {
            if pattern.fits(command) {
                match wanted.next() {
                    Some(next) => pattern = next,
                    None => return Some(at),
                }
            }
        }
        None
    }

    pub(crate) fn fits_file(&self, target: &Word) -> bool {
        matches!(self, Self::Writes(glob) if glob.fits_word(target))
    }
}

impl CommandPattern {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let Some((program, rest)) = words.split_first() else {
            return Err("a command is missing".to_owned());
        };
        let mut pattern = Self {
            program: Part::parse(program),
            letters: Vec::new(),
            options: Vec::new(),
            operands: Vec::new(),
        };
        if *program == "**" && rest.is_empty() {
            pattern.operands.push(Part::Any); // matches any arguments
        }
        for word in rest {
            match letters(word) {
                Some(letters) if letters.chars().count() <= MAX_LETTERS => {
                    pattern.letters.extend(letters.chars());
                }
                _ if word.len() > 1 && word.starts_with('-') => {
                    pattern.options.push(Glob::parse(word));
                }
                _ => pattern.operands.push(Part::parse(word)),
            }
        }
        Ok(pattern)
    }

    fn fits(&self, command: &[Word]) -> bool {
        let Some((program, rest)) = command.split_first() else { return false };
        let named = match &self.program {
            Part::Any => true,
            Part::One(glob) => glob.fits(program.name()) || glob.fits(program.raw()),
        };
        if !named {
            return false;
        }
        let end = rest.iter().position(|word| word.raw() == "--").unwrap_or(rest.len());
        let (before, after) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        let is_option = |word: &&Word| word.raw().len() > 1 && word.raw().starts_with('-');
        let options: Vec<&Word> = before.iter().filter(is_option).collect();
        let has_letter = |letter: &char| {
            options
                .iter()
                .filter_map(|word| letters(word.raw()))
                .any(|letters| letters.contains(*letter))
        };
        let has_option = |option: &Glob| {
            options.iter().any(|word| {
                let name = word.raw().split('=').next().unwrap_or_default();
                option.fits(word.raw()) || option.fits(name)
            })
        };
        let operands: Vec<&Word> =
            before.iter().filter(|word| !is_option(word)).chain(after).collect();
        self.letters.iter().all(has_letter)
            && self.options.iter().all(has_option)
            && fits_all(&self.operands, &operands)
    }
}

/// `-rf` has the letters `rf`.
fn letters(word: &str) -> Option<&str> {
    let letters = word.strip_prefix('-')?;
    let all = !letters.is_empty() && letters.chars().all(|one| one.is_ascii_alphanumeric());
    all.then_some(letters)
}

/// Linear: the part between two `**` is matched as early as possible.
fn fits_all(pattern: &[Part], words: &[&Word]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while from < words.len() {
        match pattern.get(at) {
            Some(Part::Any) => {
                again = Some((at, from));
                at += 1;
            }
            Some(Part::One(glob)) if glob.fits_word(words[from]) => (at, from) = (at + 1, from + 1),
            _ => match again {
                Some((any, start)) => {
                    again = Some((any, start + 1));
                    (at, from) = (any + 1, start + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|part| *part == Part::Any)
}
