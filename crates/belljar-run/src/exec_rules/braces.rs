//! `{a,b}` in a word: the words that a shell makes of it.

use brush_parser::word::{BraceExpressionMember as Member, BraceExpressionOrText as Part};

use super::parse::options;

/// More are one word that nobody knows.
const MOST: usize = 64;

/// What becomes of a word's braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Braces {
    /// They stand for themselves, if there are any.
    Plain,
    /// The source of each word; quotes are still in it.
    Words(Vec<String>),
    /// Too many words, or numbers that are counted.
    Unknown,
}

pub(crate) fn expanded(text: &str) -> Braces {
    if !text.contains('{') {
        return Braces::Plain;
    }
    let parts = brush_parser::word::parse_brace_expansions(text, &options()).ok().flatten();
    let parts = parts.filter(|parts| parts.iter().any(|part| matches!(part, Part::Expr(_))));
    match parts {
        None => Braces::Plain,
        Some(parts) => match joined(&parts) {
            // A word with nothing in it, not even quotes, is none.
            Some(words) => {
                Braces::Words(words.into_iter().filter(|word| !word.is_empty()).collect())
            }
            None => Braces::Unknown,
        },
    }
}

/// Every choice of the first part with every one of the next.
fn joined(parts: &[Part]) -> Option<Vec<String>> {
    let mut words = vec![String::new()];
    for part in parts {
        let choices = match part {
            Part::Text(text) => vec![text.clone()],
            Part::Expr(members) => {
                let members = members.iter().map(of_member).collect::<Option<Vec<_>>>()?;
                members.concat()
            }
        };
        if words.len() * choices.len() > MOST {
            return None;
        }
        words = words
            .iter()
            .flat_map(|word| choices.iter().map(move |choice| format!("{word}{choice}")))
            .collect();
    }
    Some(words)
}

fn of_member(member: &Member) -> Option<Vec<String>> {
    match member {
        Member::Child(parts) => joined(parts),
        Member::NumberSequence { .. } | Member::CharSequence { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_become_words() {
        let words = |text| match expanded(text) {
            Braces::Words(words) => words.join(" "),
            other => format!("{other:?}"),
        };
        assert_eq!(words("plain"), "Plain");
        assert_eq!(words("{}"), "Plain");
        assert_eq!(words("{a}"), "Plain");
        assert_eq!(words("/{,}"), "/ /");
        assert_eq!(words("{,echo,}"), "echo");
        assert_eq!(words("{'',echo}"), "'' echo");
        assert_eq!(words("a{b,c}d{e,f}"), "abde abdf acde acdf");
        assert_eq!(words("{a,b{c,d}}"), "a bc bd");
        assert_eq!(words("{1..9}"), "Unknown");
        assert_eq!(words(&"{a,b}".repeat(7)), "Unknown");
    }
}
