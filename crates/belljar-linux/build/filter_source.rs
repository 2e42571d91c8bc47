//! Reads a filter file: which system calls are let through, which are refused, and when.

use std::collections::BTreeMap;

/// What a filter says about one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Deny,
    /// Refused where all conditions of any one rule hold.
    DenyWhen(Vec<Vec<Condition>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) argument: u8,
    pub(crate) width: Width,
    pub(crate) test: Test,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Low32,
    All64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Equals(u64),
    Differs(u64),
    /// The masked bits are exactly these.
    Masked {
        mask: u64,
        value: u64,
    },
}

/// By name, for one processor.
pub(crate) fn parse(source: &str, arch: &str) -> Result<BTreeMap<String, Verdict>, String> {
    let mut verdicts = BTreeMap::new();
    for (at, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        read_line(line, arch, &mut verdicts)
            .map_err(|problem| format!("line {}: {problem}", at + 1))?;
    }
    Ok(verdicts)
}

fn read_line(
    line: &str,
    arch: &str,
    verdicts: &mut BTreeMap<String, Verdict>,
) -> Result<(), String> {
    let mut words = line.split_whitespace().peekable();
    if let Some(only) = words.peek().and_then(|word| word.strip_prefix('@')) {
        if only != arch {
            return Ok(());
        }
        words.next();
    }
    let verb = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let (names, conditions) = match rest.iter().position(|word| *word == "when") {
        Some(at) => (&rest[..at], Some(rest[at + 1..].join(" "))),
        None => (&rest[..], None),
    };
    if names.is_empty() {
        return Err("names no call".to_owned());
    }
    for name in names {
        let before = verdicts.remove(*name);
        let verdict = match (verb, &conditions, before) {
            ("allow", None, None) => Verdict::Allow,
            ("deny", None, None) => Verdict::Deny,
            ("deny", Some(text), before @ Some(Verdict::Allow | Verdict::DenyWhen(_))) => {
                let mut rules = match before {
                    Some(Verdict::DenyWhen(rules)) => rules,
                    _ => Vec::new(),
                };
                rules.push(text.split(" and ").map(condition).collect::<Result<_, _>>()?);
                Verdict::DenyWhen(rules)
            }
            ("deny", Some(_), _) => return Err(format!("{name} is not allowed before")),
            ("allow" | "deny", ..) => return Err(format!("{name} is named twice")),
            (other, ..) => return Err(format!("\"{other}\" is neither allow nor deny")),
        };
        verdicts.insert((*name).to_owned(), verdict);
    }
    Ok(())
}

/// `arg0 == 1`, `arg0 != 1`, `arg1 & 0xf == 3`, `arg1 & 0o4000`, each with `:64` after the index.
fn condition(text: &str) -> Result<Condition, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (index, width) = match words.first().and_then(|word| word.strip_prefix("arg")) {
        Some(index) => match index.strip_suffix(":64") {
            Some(index) => (index, Width::All64),
            None => (index, Width::Low32),
        },
        None => return Err(format!("\"{text}\" does not start with an argument")),
    };
    let argument = index.parse().ok().filter(|index| *index < 6);
    let argument: u8 = argument.ok_or_else(|| format!("\"{text}\" has no argument number"))?;
    let test = match words[1..] {
        ["==", value] => Test::Equals(number(value)?),
        ["!=", value] => Test::Differs(number(value)?),
        ["&", mask, "==", value] => Test::Masked { mask: number(mask)?, value: number(value)? },
        ["&", mask] => Test::Masked { mask: number(mask)?, value: number(mask)? },
        _ => return Err(format!("\"{text}\" is no condition")),
    };
    Ok(Condition { argument, width, test })
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (None, Some(octal)) => u64::from_str_radix(octal, 8),
        (None, None) => text.parse(),
    };
    parsed.map_err(|_| format!("\"{text}\" is no number"))
}
