//! Parses a filter file: which system calls are allowed, which are refused, and when.

use std::collections::BTreeMap;

/// The verdict of a filter on one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Deny,
    /// Refused where all conditions of any one rule hold; the first such rule decides the error.
    DenyWhen(Vec<Rule>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) errno: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Equals(u64),
    Differs(u64),
    /// The masked bits are exactly these.
    Masked {
        mask: u64,
        value: u64,
    },
    /// The masked bits, as a number, are in none of these ranges (first and last).
    Outside {
        mask: u32,
        ranges: Vec<(u32, u32)>,
    },
}

/// Lists of values by name, in the order of the file.
type Sets = BTreeMap<String, Vec<(u32, u32)>>;

/// What a refused call may be answered with: EPERM unless a rule names another.
const ANSWERS: &[(&str, u32)] = &[
    ("EPERM", EPERM),
    ("EINVAL", 22),
    ("ENOTTY", 25),
    ("ENOPROTOOPT", 92),
    ("EPROTONOSUPPORT", 93),
];
const EPERM: u32 = 1;

/// By name, for one processor.
pub(crate) fn parse(source: &str, arch: &str) -> Result<BTreeMap<String, Verdict>, String> {
    let mut verdicts = BTreeMap::new();
    let mut sets = Sets::new();
    for (at, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        read_line(line, arch, &mut verdicts, &mut sets)
            .map_err(|problem| format!("line {}: {problem}", at + 1))?;
    }
    Ok(verdicts)
}

fn read_line(
    line: &str,
    arch: &str,
    verdicts: &mut BTreeMap<String, Verdict>,
    sets: &mut Sets,
) -> Result<(), String> {
    let mut fields = line.split_whitespace().peekable();
    if let Some(only) = fields.peek().and_then(|field| field.strip_prefix('@')) {
        if only != arch {
            return Ok(());
        }
        fields.next();
    }
    let verb = fields.next().unwrap_or_default();
    let rest: Vec<&str> = fields.collect();
    if verb == "set" {
        return add_to_set(&rest, sets);
    }
    let (names, conditions) = match rest.iter().position(|field| *field == "when") {
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
                rules.push(rule(text, sets)?);
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

/// `NAME V V…`, where a V is a number or two with `-` between them.
fn add_to_set(fields: &[&str], sets: &mut Sets) -> Result<(), String> {
    let [name, values @ ..] = fields else { return Err("has no set name".to_owned()) };
    if name.parse::<u32>().is_ok() || values.is_empty() {
        return Err(format!("\"{name}\" is not a set with values"));
    }
    let set = sets.entry((*name).to_owned()).or_default();
    for value in values {
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        set.push((number32(first)?, number32(last)?));
    }
    Ok(())
}

/// Conditions, and after `answer` the error that the caller gets.
fn rule(text: &str, sets: &Sets) -> Result<Rule, String> {
    let (conditions, errno) = match text.split_once(" answer ") {
        None => (text, EPERM),
        Some((conditions, name)) => {
            let known = ANSWERS.iter().find(|(known, _)| *known == name);
            (conditions, known.ok_or_else(|| format!("\"{name}\" is not an error name"))?.1)
        }
    };
    let conditions = conditions.split(" and ").map(|text| condition(text, sets));
    Ok(Rule { conditions: conditions.collect::<Result<_, _>>()?, errno })
}

/// `arg0 == 1`, `arg0 != 1`, `arg1 & 0xf == 3`, `arg1 & 0o4000`, each with `:64` after the index; and
/// `arg0 not in SET`, `arg1 & 0xf not in SET`.
fn condition(text: &str, sets: &Sets) -> Result<Condition, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let (index, width) = match fields.first().and_then(|field| field.strip_prefix("arg")) {
        Some(index) => match index.strip_suffix(":64") {
            Some(index) => (index, Width::All64),
            None => (index, Width::Low32),
        },
        None => return Err(format!("\"{text}\" does not start with an argument")),
    };
    let argument = index.parse().ok().filter(|index| *index < 6);
    let argument: u8 = argument.ok_or_else(|| format!("\"{text}\" has no argument number"))?;
    let test = match fields[1..] {
        ["==", value] => Test::Equals(number(value)?),
        ["!=", value] => Test::Differs(number(value)?),
        ["&", mask, "==", value] => Test::Masked { mask: number(mask)?, value: number(value)? },
        ["not", "in", name] => outside(u32::MAX, name, width, sets)?,
        ["&", mask, "not", "in", name] => outside(number32(mask)?, name, width, sets)?,
        ["&", mask] => Test::Masked { mask: number(mask)?, value: number(mask)? },
        _ => return Err(format!("\"{text}\" is not a condition")),
    };
    Ok(Condition { argument, width, test })
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (None, Some(octal)) => u64::from_str_radix(octal, 8),
        (None, None) => text.parse(),
    };
    parsed.map_err(|_| format!("\"{text}\" is not a number"))
}

fn number32(text: &str) -> Result<u32, String> {
    u32::try_from(number(text)?).map_err(|_| format!("\"{text}\" has more than 32 bits"))
}

fn outside(mask: u32, name: &str, width: Width, sets: &Sets) -> Result<Test, String> {
    if width != Width::Low32 {
        return Err("a set is compared with 32 bits only".to_owned());
    }
    let set = sets.get(name).ok_or_else(|| format!("there is no set \"{name}\" above"))?;
    let mut values = set.clone();
    values.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for (first, last) in values {
        match ranges.last_mut() {
            _ if first > last => return Err(format!("{first:#x}-{last:#x} is not a range")),
            Some((_, end)) if first <= *end => return Err(format!("{first:#x} is there twice")),
            Some((_, end)) if first == *end + 1 => *end = last,
            _ => ranges.push((first, last)),
        }
    }
    Ok(Test::Outside { mask, ranges })
}
