//! Reads the filter's rules from their source file, and derives calls that each rule must refuse or allow.

use std::collections::{BTreeMap, BTreeSet};

use crate::numbers::number_of;

const SOURCE: &str = include_str!("../../belljar-linux/filters/command.filter");

/// One way to make a call, and whether some rule forbids it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) number: i64,
    pub(crate) args: [u64; 6],
    pub(crate) denied: bool,
    /// What a denied call is answered with.
    pub(crate) errno: i32,
}

impl Call {
    pub(crate) fn shown(&self) -> String {
        // Without the trailing ones that have no effect.
        let last = self.args.iter().rposition(|arg| *arg != NOTHING && *arg != 0);
        let named = &self.args[..last.map_or(0, |last| last + 1)];
        let args: Vec<String> = named.iter().map(|arg| format!("{arg:#x}")).collect();
        format!("{}({})", self.name, args.join(","))
    }
}

#[derive(Clone, Debug)]
struct Rule {
    name: String,
    conditions: Vec<Condition>,
    errno: i32,
}

impl Rule {
    fn matches(&self, args: &[u64; 6]) -> bool {
        self.conditions.iter().all(|condition| condition.holds(args[condition.index]))
    }
}

#[derive(Clone, Debug)]
struct Condition {
    index: usize,
    wide: bool,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(u64),
    NotEqual(u64),
    Masked {
        mask: u64,
        value: u64,
    },
    /// In none of these, from the first to the last.
    Outside {
        mask: u64,
        ranges: Vec<(u64, u64)>,
    },
}

/// Lists of values, by name.
type Sets = BTreeMap<String, Vec<(u64, u64)>>;

impl Condition {
    fn holds(&self, arg: u64) -> bool {
        let arg = if self.wide { arg } else { arg & 0xffff_ffff };
        match &self.test {
            Test::Equal(value) => arg == *value,
            Test::NotEqual(value) => arg != *value,
            Test::Masked { mask, value } => arg & mask == *value,
            Test::Outside { mask, ranges } => {
                ranges.iter().all(|(first, last)| !(*first..=*last).contains(&(arg & mask)))
            }
        }
    }

    fn values(&self) -> Vec<u64> {
        match &self.test {
            Test::Equal(value) | Test::NotEqual(value) => vec![*value],
            Test::Masked { mask, value } => vec![*mask, *value],
            Test::Outside { ranges, .. } => {
                ranges.iter().flat_map(|(first, last)| [*first, *last]).collect()
            }
        }
    }
}

/// Names that a rule forbids whatever the arguments are.
pub(crate) fn plain_denials() -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for rule in rules().iter().filter(|rule| rule.conditions.is_empty()) {
        let Some(number) = number_of(&rule.name) else { continue };
        let (name, errno) = (rule.name.clone(), rule.errno);
        calls.push(Call { name, number, args: [NOTHING; 6], denied: true, errno });
    }
    calls
}

/// For each rule with conditions: arguments that it matches, the same with high bits where it looks
/// at 32 of them, and for each condition arguments that miss it.
pub(crate) fn conditional_calls() -> Vec<Call> {
    let rules = rules();
    let mut calls = BTreeSet::new();
    for rule in rules.iter().filter(|rule| !rule.conditions.is_empty()) {
        let Some(number) = number_of(&rule.name) else { continue };
        let mut add = |args: [u64; 6]| {
            let mut matching =
                rules.iter().filter(|other| other.name == rule.name && other.matches(&args));
            let first = matching.next(); // as in the filter
            let (denied, errno) = (first.is_some(), first.map_or(0, |rule| rule.errno));
            if denied || !is_about_init(&rule.name, &args) {
                calls.insert(Call { name: rule.name.clone(), number, args, denied, errno });
            }
        };
        let unnamed = unnamed(&rule.name);
        let Some(matching) = solve(&rule.conditions, unnamed) else { continue };
        add(matching);
        for (at, condition) in rule.conditions.iter().enumerate() {
            if !condition.wide || matches!(condition.test, Test::Masked { .. }) {
                let mut high = matching;
                high[condition.index] |= 1 << 40;
                add(high);
            }
            let mut others = rule.conditions.clone();
            others.remove(at);
            if let Some(missing) = solve_but(&others, condition, unnamed) {
                add(missing);
            }
        }
    }
    calls.into_iter().collect()
}

/// What the filter lets through about process 1 the kernel may refuse by itself, with the same answer.
fn is_about_init(name: &str, args: &[u64; 6]) -> bool {
    let by_pid =
        ["prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"];
    by_pid.contains(&name) && args[0] == 1
}

fn solve(conditions: &[Condition], unnamed: [u64; 6]) -> Option<[u64; 6]> {
    let mut args = unnamed;
    for condition in conditions {
        let same = |other: &&Condition| other.index == condition.index;
        let found = candidates(conditions)
            .into_iter()
            .find(|value| conditions.iter().filter(same).all(|other| other.holds(*value)))?;
        args[condition.index] = found;
    }
    Some(args)
}

/// The other conditions hold where that is possible, and this one does not.
fn solve_but(others: &[Condition], missed: &Condition, unnamed: [u64; 6]) -> Option<[u64; 6]> {
    let mut args = solve(others, unnamed)?;
    let mut all = others.to_vec();
    all.push(missed.clone());
    let on_this = |other: &&Condition| other.index == missed.index;
    let fits = |value: &u64| {
        !missed.holds(*value) && others.iter().filter(on_this).all(|other| other.holds(*value))
    };
    args[missed.index] = candidates(&all).into_iter().find(fits)?;
    Some(args)
}

/// Values worth trying: every one that a condition names, its neighbours, and a few small ones.
fn candidates(conditions: &[Condition]) -> Vec<u64> {
    let named = conditions.iter().flat_map(Condition::values);
    let around = named.flat_map(|value| [value, value.wrapping_add(1) & 0xffff_ffff]);
    around.chain([0, 1, 40, 132, 0x0400_0000]).collect()
}

fn rules() -> Vec<Rule> {
    let mut sets = Sets::new();
    SOURCE.lines().flat_map(|line| read_line(line, &mut sets)).collect()
}

fn read_line(line: &str, sets: &mut Sets) -> Vec<Rule> {
    let mut argv = line.split_whitespace().peekable();
    if let Some(only) = argv.peek().and_then(|word| word.strip_prefix('@')) {
        if only != std::env::consts::ARCH {
            return Vec::new();
        }
        argv.next();
    }
    match argv.next() {
        Some("deny") => {}
        Some("set") => {
            let set = sets.entry(argv.next().unwrap_or_default().to_owned()).or_default();
            set.extend(argv.filter_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                Some((value_of(first)?, value_of(last)?))
            }));
            return Vec::new();
        }
        _ => return Vec::new(),
    }
    let rest: Vec<&str> = argv.collect();
    let (names, text) = match rest.iter().position(|word| *word == "when") {
        Some(at) => (&rest[..at], rest[at + 1..].join(" ")),
        None => (&rest[..], String::new()),
    };
    let (text, errno) = match text.split_once(" answer ") {
        Some((text, name)) => (text, errno_of(name)),
        None => (text.as_str(), libc::EPERM),
    };
    let conditions = text.split(" and ").filter(|text| !text.is_empty());
    let conditions: Vec<Condition> = conditions.filter_map(|text| condition(text, sets)).collect();
    names
        .iter()
        .map(|name| Rule { name: (*name).to_owned(), conditions: conditions.clone(), errno })
        .collect()
}

/// One that no call has where the file names another: the comparison then fails.
fn errno_of(name: &str) -> i32 {
    match name {
        "EINVAL" => libc::EINVAL,
        "ENOTTY" => libc::ENOTTY,
        "ENOPROTOOPT" => libc::ENOPROTOOPT,
        "EPROTONOSUPPORT" => libc::EPROTONOSUPPORT,
        _ => i32::MAX,
    }
}

fn condition(text: &str, sets: &Sets) -> Option<Condition> {
    let argv: Vec<&str> = text.split_whitespace().collect();
    let argument = argv.first()?.strip_prefix("arg")?;
    let (index, wide) = match argument.strip_suffix(":64") {
        Some(index) => (index, true),
        None => (argument, false),
    };
    let outside = |mask, name| Some(Test::Outside { mask, ranges: sets.get(name)?.clone() });
    let test = match argv[1..] {
        ["==", value] => Test::Equal(value_of(value)?),
        ["!=", value] => Test::NotEqual(value_of(value)?),
        ["&", mask, "==", value] => Test::Masked { mask: value_of(mask)?, value: value_of(value)? },
        ["not", "in", name] => outside(u64::from(u32::MAX), name)?,
        ["&", mask, "not", "in", name] => outside(value_of(mask)?, name)?,
        ["&", mask] => Test::Masked { mask: value_of(mask)?, value: value_of(mask)? },
        _ => return None,
    };
    Some(Condition { index: index.parse().ok()?, wide, test })
}

fn value_of(text: &str) -> Option<u64> {
    match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) => u64::from_str_radix(octal, 8).ok(),
        (None, None) => text.parse().ok(),
    }
}

/// No address, no descriptor, no process, no valid flags: a call that gets this far does nothing, on
/// the unprotected arm too. Zero would be standard input, or "switch it off".
const NOTHING: u64 = u64::MAX;

/// What the arguments are that no condition names.
fn unnamed(name: &str) -> [u64; 6] {
    match name {
        // Here zero is the plain case, which lets the other arguments decide.
        "socket" | "socketpair" | "personality" | "clone" | "unshare" => [0; 6],
        _ => [NOTHING; 6],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_file_gives_calls() {
        let denied_lines = SOURCE
            .lines()
            .filter(|line| {
                let line = line
                    .strip_prefix("@x86_64 ")
                    .filter(|_| cfg!(target_arch = "x86_64"))
                    .unwrap_or(line);
                line.starts_with("deny ")
            })
            .count();
        assert!(denied_lines > 30, "the file was not read");
        for rule in rules() {
            assert!(number_of(&rule.name).is_some(), "{} has no number", rule.name);
            let conditional = !rule.conditions.is_empty();
            assert_ne!(rule.errno, i32::MAX, "{rule:?}");
            let solved = solve(&rule.conditions, unnamed(&rule.name));
            assert!(!conditional || solved.is_some_and(|args| rule.matches(&args)), "{rule:?}");
        }
        let named: BTreeSet<String> = rules().into_iter().map(|rule| rule.name).collect();
        let called: BTreeSet<String> =
            plain_denials().into_iter().chain(conditional_calls()).map(|call| call.name).collect();
        assert_eq!(named, called);
    }

    /// They are made on the unprotected arm too, as root.
    #[test]
    fn no_call_can_touch_a_descriptor_or_an_address() {
        for call in plain_denials() {
            assert_eq!(call.args, [NOTHING; 6], "{}", call.shown());
        }
        let by_descriptor =
            ["fchmod", "ioctl", "fcntl", "setsockopt", "openat", "mkdirat", "mknodat", "fchmodat"];
        let by_path = ["chmod", "creat", "mkdir", "mknod", "open"];
        for call in conditional_calls() {
            if by_descriptor.contains(&&*call.name) || by_path.contains(&&*call.name) {
                assert_eq!(call.args[0], NOTHING, "{}", call.shown());
            }
        }
    }

    #[test]
    fn both_sides_of_a_rule_are_tried() {
        let calls = conditional_calls();
        let has = |name: &str, denied: bool| {
            calls.iter().any(|call| call.name == name && call.denied == denied)
        };
        for name in [
            "unshare",
            "socket",
            "openat",
            "prlimit64",
            "ioctl",
            "fcntl",
            "setsockopt",
            "personality",
        ] {
            assert!(has(name, true) && has(name, false), "{name}");
        }
        let high =
            calls.iter().find(|call| call.name == "ioctl" && call.args[1] > u64::from(u32::MAX));
        assert!(high.is_some_and(|call| call.denied), "the high spelling is the same call");
    }
}
