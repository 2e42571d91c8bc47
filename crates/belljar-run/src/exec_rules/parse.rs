//! The parser, and what is given to it. The text is hostile, and the parser is recursive and goes back and forth: so size
//! and depth are bounded first, and what is beyond that cannot be decided.

use brush_parser::ast::Program;
use brush_parser::{ParserOptions, SourceInfo, Token};

/// Of one script.
const LONGEST: usize = 32 * 1024;
/// Brackets of all kinds in one script: as deep as the parser may go.
const MOST_BRACKETS: usize = 200;
/// Words that open something, in one script.
const MOST_OPENERS: usize = 200;
/// Round brackets within each other, where the parser tries several ways at each.
const DEEPEST: usize = 8;

/// Why a script cannot be decided about.
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
    if text.len() > LONGEST || brackets > MOST_BRACKETS {
        return undecided("the script is too long or too deep to be read");
    }
    let options = options();
    let unreadable = || Undecided("the script cannot be read".to_owned());
    let tokens = brush_parser::uncached_tokenize_str(text, &options.tokenizer_options())
        .map_err(|_| unreadable())?;
    if depth(&tokens) > DEEPEST {
        return undecided("the script is too deep to be read");
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
    if tokens.iter().filter(openers).count() > MOST_OPENERS {
        return undecided("the script is too deep to be read");
    }
    brush_parser::parse_tokens(&tokens, &options, &SourceInfo::default()).map_err(|_| unreadable())
}

/// At least as deep as the parser can get. The patterns of `case` close what nobody opened.
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
