//! Parses a shell script, within limits on size and depth. The text is hostile, and the parser recurses and backtracks;
//! a script beyond the limits is undecided.

use brush_parser::ast::Program;
use brush_parser::{ParserOptions, SourceInfo, Token};

/// Of one script.
const MAX_SCRIPT_BYTES: usize = 32 * 1024;
/// Opening brackets in one script, which bound the recursion.
const MAX_BRACKETS: usize = 200;
/// Keywords that open a compound command, in one script.
const MAX_OPENERS: usize = 200;
/// Nesting of parentheses; the parser backtracks at each.
const MAX_DEPTH: usize = 8;

/// Why a script cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undecided(pub(crate) String);

pub(super) fn undecided<T>(why: &str) -> Result<T, Undecided> {
    Err(Undecided(why.to_owned()))
}

pub(super) fn options() -> ParserOptions {
    ParserOptions::default()
}

pub(super) fn parse(text: &str) -> Result<Program, Undecided> {
    let brackets = text.chars().filter(|one| matches!(one, '(' | '{' | '`')).count();
    if text.len() > MAX_SCRIPT_BYTES || brackets > MAX_BRACKETS {
        return undecided("the script is too long or nested too deeply");
    }
    let options = options();
    let unreadable = || Undecided("the script cannot be parsed".to_owned());
    let tokens = brush_parser::uncached_tokenize_str(text, &options.tokenizer_options())
        .map_err(|_| unreadable())?;
    if depth(&tokens) > MAX_DEPTH {
        return undecided("the script is nested too deeply");
    }
    let openers = |token: &&Token| {
        matches!(
            token.to_str(),
            "if" | "while"
                | "until"
                | "for"
                | "case"
                | "select"
                | "{"
                | "function"
                | "!"
                | "[["
                | "time"
        )
    };
    if tokens.iter().filter(openers).count() > MAX_OPENERS {
        return undecided("the script is nested too deeply");
    }
    brush_parser::parse_tokens(&tokens, &options, &SourceInfo::default()).map_err(|_| unreadable())
}

/// An upper bound of the nesting. Patterns of `case` have a closing parenthesis without an opening one.
fn depth(tokens: &[Token]) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let (mut cases, mut awaited) = (0_usize, 0_usize);
    for token in tokens {
        match token {
            Token::Operator(text, _) => match text.as_str() {
                "(" | "<(" | ">(" => open += 1,
                ")" if cases > 0 => cases -= 1,
                ")" => open = open.saturating_sub(1),
                ";;" | ";&" | ";;&" => cases += 1,
                _ => {}
            },
            Token::Word(text, _) => match text.as_str() {
                "case" => awaited += 1,
                "in" if awaited > 0 => (awaited, cases) = (awaited - 1, cases + 1),
                _ => {}
            },
        }
        deepest = deepest.max(open);
    }
    deepest
}
