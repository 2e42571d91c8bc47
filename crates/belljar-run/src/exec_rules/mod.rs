//! Checks commands that are executed in a running sandbox against rules, to catch mistakes.
//!
//! Not a boundary: a process that wants to get around a rule can. The sandbox is the boundary.

mod ansi_escapes;
mod braces;
mod builtin;
mod grammar;
mod judge_process;
mod parse;
mod pattern;
mod policy;
#[cfg(test)]
mod tests;
mod unwrap;
mod word;

pub use judge_process::run_rule_checker_if_requested;
pub(crate) use policy::{BrokenRule, ExecRules, RuleDecision};

use builtin::{BOMB, BOMB_WHY, BUILT_IN};
use grammar::{Script, Simple};
use pattern::Pattern;
use unwrap::{Inner, inner};
use word::Word;

use belljar_spec::{CommandPolicy, OsText, RuleSpec};
use serde::{Deserialize, Serialize};

/// Nesting of scripts in commands.
const MAX_DEPTH: usize = 6;
/// Commands of one request, in all its scripts.
const MAX_COMMANDS: usize = 5_000;
/// Of a command in a message.
const MAX_SHOWN_CHARS: usize = 200;
/// The rule name for a command that cannot be judged.
pub const UNDECIDED: &str = "(undecided)";

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("commands.{list}: the rule \"{rule}\" {why}")]
pub struct RuleError {
    pub list: &'static str,
    pub rule: String,
    pub why: String,
}

#[derive(Clone, Debug)]
struct CompiledRule {
    text: String,
    why: String,
    pattern: Pattern,
}

/// All rules of a run.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    deny: Vec<CompiledRule>,
    allow: Vec<CompiledRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RuleVerdict {
    Allowed,
    Denied {
        rule: String,
        why: String,
        /// The part of the command that the rule matches.
        piece: String,
    },
}

impl RuleSet {
    /// Whether the policy's own rules are valid: fails if an example of a rule is wrong.
    pub fn check(policy: &CommandPolicy) -> Result<(), RuleError> {
        Self::of_policy(policy).map(drop)
    }

    /// The built-in rules and those of the policy.
    pub fn compile(policy: &CommandPolicy) -> Result<Self, RuleError> {
        let mut rules = Self::of_policy(policy)?;
        rules.deny.splice(..0, built_in());
        Ok(rules)
    }

    fn of_policy(policy: &CommandPolicy) -> Result<Self, RuleError> {
        let mut rules = Self::default();
        for (list, specs) in [("deny", &policy.deny), ("allow", &policy.allow)] {
            for spec in specs {
                let rule = checked(list, spec)?;
                match list {
                    "deny" => rules.deny.push(rule),
                    _ => rules.allow.push(rule),
                }
            }
        }
        Ok(rules)
    }

    pub fn judge(&self, argv: &[OsText]) -> RuleVerdict {
        let words: Vec<Word> = argv
            .iter()
            .map(|word| Word::known(&String::from_utf8_lossy(word.as_bytes())))
            .collect();
        let simple = Simple { words, ..Simple::default() };
        let mut judge = Judge { rules: self, left: MAX_COMMANDS };
        judge.pipeline(&[simple], 0).map_or_else(|denied| *denied, |()| RuleVerdict::Allowed)
    }

    /// Whether a shell script must be parsed to judge it.
    pub fn needs_grammar(argv: &[OsText]) -> bool {
        let mut words: Vec<Word> = argv
            .iter()
            .map(|word| Word::known(&String::from_utf8_lossy(word.as_bytes())))
            .collect();
        for _ in 0..MAX_DEPTH {
            match inner(&words) {
                Some(Inner::Command(command)) => words = command,
                Some(Inner::Script(_) | Inner::FedShell) => return true,
                None => return false,
            }
        }
        true
    }
}

fn built_in() -> Vec<CompiledRule> {
    let each =
        BUILT_IN.iter().flat_map(|group| group.rules.iter().map(move |text| (*text, group.why)));
    each.flat_map(|(text, why)| {
        let pattern = Pattern::parse(text).ok()?;
        Some(CompiledRule { text: text.to_owned(), why: why.to_owned(), pattern })
    })
    .collect()
}

fn checked(list: &'static str, spec: &RuleSpec) -> Result<CompiledRule, RuleError> {
    let wrong = |why: String| RuleError { list, rule: spec.rule.clone(), why };
    let pattern = Pattern::parse(&spec.rule).map_err(|why| wrong(format!("is invalid: {why}")))?;
    let why = match list {
        "deny" => "it is on the list commands.deny".to_owned(),
        _ => "it is on the list commands.allow".to_owned(),
    };
    let rule = CompiledRule { text: spec.rule.clone(), why, pattern };
    let alone = RuleSet { deny: vec![rule.clone()], allow: Vec::new() };
    for (examples, expected) in [(&spec.matches, true), (&spec.no_match, false)] {
        for example in examples {
            let found = alone.denies_example(example).map_err(|why| {
                wrong(format!("has an example that cannot be parsed, \"{example}\": {why}"))
            })?;
            if found != expected {
                let problem = if expected {
                    "does not match its example"
                } else {
                    "matches its no_match example"
                };
                return Err(wrong(format!("{problem} \"{example}\"")));
            }
        }
    }
    Ok(rule)
}

impl RuleSet {
    /// Whether a rule denies an example, which is a shell command line.
    fn denies_example(&self, example: &str) -> Result<bool, String> {
        let script = grammar::read(example).map_err(|undecided| undecided.0)?;
        let mut judge = Judge { rules: self, left: MAX_COMMANDS };
        Ok(match judge.script(&script, 1) {
            Ok(()) => false,
            Err(denied) => {
                !matches!(&*denied, RuleVerdict::Denied { rule, .. } if rule == UNDECIDED)
            }
        })
    }
}

/// `Err` is a denial.
type Judged = Result<(), Box<RuleVerdict>>;

struct Judge<'a> {
    rules: &'a RuleSet,
    left: usize,
}

impl Judge<'_> {
    fn script(&mut self, script: &Script, depth: usize) -> Judged {
        if let Some(name) = &script.bomb {
            let allowed = self.rules.allow.iter().any(|rule| rule.text == BOMB);
            if !allowed {
                return denied(BOMB, BOMB_WHY, &format!("{name}() {{ {name} | {name} }}"));
            }
        }
        script.pipelines.iter().try_for_each(|pipeline| self.pipeline(pipeline, depth))
    }

    fn pipeline(&mut self, pipeline: &[Simple], depth: usize) -> Judged {
        match self.left.checked_sub(pipeline.len()) {
            Some(left) => self.left = left,
            None => return undecided("it contains too many commands", pipeline),
        }
        let mut layers: Vec<Vec<Word>> =
            pipeline.iter().map(|simple| simple.words.clone()).collect();
        for simple in pipeline {
            self.writes(simple)?;
        }
        let (mut scripts, mut is_done) = (Vec::new(), vec![false; layers.len()]);
        // Replace each wrapper by the command that it starts, layer by layer.
        for _ in 0..=MAX_DEPTH {
            self.layer(&layers)?;
            let mut deeper = false;
            for (at, words) in layers.iter_mut().enumerate() {
                if is_done[at] {
                    continue;
                }
                match inner(words) {
                    Some(Inner::Command(command)) => {
                        *words = command;
                        deeper = true;
                        continue;
                    }
                    Some(Inner::Script(script)) => scripts.push((words.clone(), script)),
                    Some(Inner::FedShell) => {
                        scripts.extend(fed(pipeline, at).map(|fed| (words.clone(), fed)));
                    }
                    None => {}
                }
                is_done[at] = true;
            }
            if !deeper {
                return scripts
                    .into_iter()
                    .try_for_each(|(words, script)| self.inner_script(&words, &script, depth));
            }
        }
        undecided("too many programs start other programs", pipeline)
    }

    /// Checks one layer of commands of a pipeline.
    fn layer(&self, layers: &[Vec<Word>]) -> Judged {
        let commands: Vec<&[Word]> = layers.iter().map(Vec::as_slice).collect();
        for rule in &self.rules.deny {
            if let Some(at) = rule.pattern.find(&commands)
                && !self.is_allowed(&commands, at)
            {
                return denied(&rule.text, &rule.why, &shown(commands[at]));
            }
        }
        for (at, command) in commands.iter().enumerate() {
            if command.first().is_some_and(Word::is_unknown) && !self.is_allowed(&commands, at) {
                return denied(UNDECIDED, "the program is only known at run time", &shown(command));
            }
        }
        Ok(())
    }

    fn is_allowed(&self, commands: &[&[Word]], at: usize) -> bool {
        let alone = &commands[at..=at];
        self.rules.allow.iter().any(|rule| {
            rule.pattern.find(alone).is_some() || rule.pattern.find(&commands[..=at]) == Some(at)
        })
    }

    fn writes(&self, simple: &Simple) -> Judged {
        for target in &simple.writes {
            let fits = |rule: &&CompiledRule| rule.pattern.fits_file(target);
            if let Some(rule) = self.rules.deny.iter().find(fits)
                && !self.rules.allow.iter().any(|rule| fits(&rule))
            {
                return denied(
                    &rule.text,
                    &rule.why,
                    &format!("{} > {}", shown(&simple.words), target.shown()),
                );
            }
        }
        Ok(())
    }

    fn inner_script(&mut self, command: &[Word], script: &Word, depth: usize) -> Judged {
        let read = match script.text() {
            None => Err("the script is only known at run time".to_owned()),
            Some(_) if depth >= MAX_DEPTH => Err("scripts are nested too deeply".to_owned()),
            Some(text) => grammar::read(text).map_err(|undecided| undecided.0),
        };
        match read {
            Ok(script) => self.script(&script, depth + 1),
            Err(_) if self.is_allowed(&[command], 0) => Ok(()),
            Err(why) => denied(UNDECIDED, &why, &shown(command)),
        }
    }
}

/// The input of a shell without a script: a redirect, or the output of `echo` before it in the pipeline.
fn fed(pipeline: &[Simple], at: usize) -> Option<Word> {
    if let Some(input) = &pipeline[at].input {
        return Some(input.clone());
    }
    let before = &pipeline[at.checked_sub(1)?].words;
    let (program, words) = before.split_first()?;
    if !matches!(program.name(), "echo" | "printf") {
        return None;
    }
    let mut text = Word::default();
    for word in words.iter().skip_while(|word| word.raw().starts_with('-')) {
        text.append(word);
        text.push(" ");
    }
    Some(text)
}

fn denied(rule: &str, why: &str, piece: &str) -> Judged {
    let (rule, why) = (rule.to_owned(), why.to_owned());
    Err(Box::new(RuleVerdict::Denied { rule, why, piece: piece.to_owned() }))
}

fn undecided(why: &str, pipeline: &[Simple]) -> Judged {
    let first = pipeline.first().map_or(String::new(), |simple| shown(&simple.words));
    denied(UNDECIDED, why, &first)
}

fn shown(words: &[Word]) -> String {
    let all: Vec<String> = words.iter().map(Word::shown).collect();
    let all = all.join(" ");
    match all.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &all[..at]),
        None => all,
    }
}
