//! Expands `{a,b}` in a word as a shell does.

use brush_parser::word::{BraceExpressionMember as Member, BraceExpressionOrText as Part};

use super::parse::options;

/// With more, the result is one unknown word.
const MAX_WORDS: usize = 64;

/// The result of brace expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Braces {
    /// No expansion: no braces, or literal ones.
    Plain,
    /// The source of each word; quotes are still in it.
    Words(Vec<String>),
    /// Too many words, or a sequence such as `{1..9}`.
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
            // An empty word without quotes is dropped.
            Some(words) => {
                Braces::Words(words.into_iter().filter(|word| !word.is_empty()).collect())
            }
            None => Braces::Unknown,
        },
    }
}

/// The Cartesian product of the parts.
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
        if words.len() * choices.len() > MAX_WORDS {
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
