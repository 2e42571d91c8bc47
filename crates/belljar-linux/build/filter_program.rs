//! Compiles verdicts on system calls to one program for the kernel.
//!
//! When a filter is loaded, the kernel walks through it once for every call number there is. A chain
//! of comparisons, as filter libraries write it, makes that the dearest step of a whole start (2 ms);
//! a search tree over ranges of numbers costs a twentieth of it.

use std::collections::BTreeMap;

use super::filter_source::{Condition, Rule, Test, Verdict, Width};

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// x32 calls carry the 64-bit mode's architecture and this bit in their number.
const X32_BIT: u32 = 0x4000_0000;

/// A place to jump to.
type Label = usize;

/// Where a program goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Next,
    Label(Label),
    Return(u32),
}

enum Step {
    Plain {
        code: u16,
        k: u32,
    },
    /// A comparison, and where to go on if it holds and if it fails.
    Branch {
        code: u16,
        k: u32,
        holds: Target,
        fails: Target,
    },
    Goto(Target),
    Here(Label),
}

/// How ranges of numbers are searched.
enum Search {
    Leaf(Target),
    /// Numbers from `at` on are in `high`.
    Split {
        at: u32,
        low: Box<Search>,
        high: Box<Search>,
    },
    /// One number differs from all around it.
    Single {
        number: u32,
        its: Target,
        others: Target,
    },
}

#[derive(Default)]
struct Assembler {
    steps: Vec<Step>,
    labels: usize,
}

/// `audit_arch`: how the kernel calls the processor; `has_x32`: whether it has that second mode.
pub(crate) fn compile(
    verdicts: &BTreeMap<u32, Verdict>,
    audit_arch: u32,
    has_x32: bool,
) -> Result<Vec<u8>, String> {
    let mut program = Assembler::default();
    // Calls with the same rules share them.
    let mut rules: Vec<(Label, &Vec<Rule>)> = Vec::new();
    let mut ranges: Vec<(u32, Target)> = vec![(0, Target::Return(ERRNO | ENOSYS))];
    let last = verdicts.keys().next_back().copied().unwrap_or(0);
    for number in 0..=last + 1 {
        let target = match verdicts.get(&number) {
            None => Target::Return(ERRNO | ENOSYS),
            Some(Verdict::Allow) => Target::Return(ALLOW),
            Some(Verdict::Deny) => Target::Return(ERRNO | EPERM),
            Some(Verdict::DenyWhen(of_this_call)) => {
                let known = rules.iter().find(|(_, rules)| *rules == of_this_call);
                Target::Label(known.map(|(label, _)| *label).unwrap_or_else(|| {
                    let label = program.label();
                    rules.push((label, of_this_call));
                    label
                }))
            }
        };
        match ranges.last_mut() {
            Some((start, before)) if *start == number => *before = target,
            Some((_, before)) if *before == target => {}
            _ => ranges.push((number, target)),
        }
    }

    program.plain(LOAD, ARCH_AT);
    program.branch(IF_EQUAL, audit_arch, Target::Next, Target::Return(KILL_PROCESS));
    program.plain(LOAD, NUMBER_AT);
    if has_x32 {
        let known_mode = program.label();
        // A debugger that cancels a call sets its number to -1.
        program.branch(IF_EQUAL, u32::MAX, Target::Label(known_mode), Target::Next);
        program.branch(IF_AT_LEAST, X32_BIT, Target::Return(KILL_PROCESS), Target::Next);
        program.here(known_mode);
    }
    program.search(&ranges);
    for (label, of_one_call) in rules {
        program.here(label);
        program.rules(of_one_call);
    }
    program.assemble()
}

impl Assembler {
    fn label(&mut self) -> Label {
        self.labels += 1;
        self.labels - 1
    }

    fn plain(&mut self, code: u16, k: u32) {
        self.steps.push(Step::Plain { code, k });
    }

    fn branch(&mut self, code: u16, k: u32, holds: Target, fails: Target) {
        self.steps.push(Step::Branch { code, k, holds, fails });
    }

    fn goto(&mut self, target: Target) {
        self.steps.push(Step::Goto(target));
    }

    fn here(&mut self, label: Label) {
        self.steps.push(Step::Here(label));
    }

    fn search(&mut self, ranges: &[(u32, Target)]) {
        if let Some(plan) = plan_search(ranges) {
            self.emit_search(&plan);
        }
    }

    fn emit_search(&mut self, search: &Search) {
        match search {
            Search::Leaf(target) => self.goto(*target),
            Search::Single { number, its, others } => {
                self.branch(IF_EQUAL, *number, *its, *others);
            }
            Search::Split { at, low, high } => match (&**low, &**high) {
                (Search::Leaf(low), Search::Leaf(high)) => {
                    self.branch(IF_AT_LEAST, *at, *high, *low);
                }
                (Search::Leaf(low), high) => {
                    self.branch(IF_AT_LEAST, *at, Target::Next, *low);
                    self.emit_search(high);
                }
                (low, Search::Leaf(high)) => {
                    self.branch(IF_AT_LEAST, *at, *high, Target::Next);
                    self.emit_search(low);
                }
                (low, high) => {
                    let upper = self.label();
                    self.branch(IF_AT_LEAST, *at, Target::Label(upper), Target::Next);
                    self.emit_search(low);
                    self.here(upper);
                    self.emit_search(high);
                }
            },
        }
    }

    /// The answer of the first rule that applies; if none does, the call is allowed.
    fn rules(&mut self, rules: &[Rule]) {
        for (at, rule) in rules.iter().enumerate() {
            if at + 1 == rules.len() {
                self.rule(rule, Target::Return(ALLOW));
                return;
            }
            let following = self.label();
            self.rule(rule, Target::Label(following));
            self.here(following);
        }
        self.goto(Target::Return(ALLOW));
    }

    /// Its answer if every condition holds.
    fn rule(&mut self, rule: &Rule, otherwise: Target) {
        let answer = Target::Return(ERRNO | rule.errno);
        for (at, condition) in rule.conditions.iter().enumerate() {
            if at + 1 == rule.conditions.len() {
                self.condition(condition, answer, otherwise);
                return;
            }
            let following = self.label();
            self.condition(condition, Target::Label(following), otherwise);
            self.here(following);
        }
        self.goto(answer);
    }

    /// Goes on at one of the two; nothing falls through to what follows.
    fn condition(&mut self, condition: &Condition, holds: Target, fails: Target) {
        let low = ARGUMENTS_AT + 8 * u32::from(condition.argument);
        let halves: &[(u32, u32)] = match condition.width {
            Width::Low32 => &[(0, low)],
            Width::All64 => &[(0, low), (32, low + 4)],
        };
        let half = |value: u64, shift: u32| (value >> shift) as u32;
        match &condition.test {
            Test::Equals(value) => {
                for (shift, at) in halves {
                    self.plain(LOAD, *at);
                    self.branch(IF_EQUAL, half(*value, *shift), Target::Next, fails);
                }
                self.goto(holds);
            }
            Test::Masked { mask, value } => {
                for (shift, at) in halves.iter().filter(|(shift, _)| half(*mask, *shift) != 0) {
                    self.plain(LOAD, *at);
                    self.plain(AND, half(*mask, *shift));
                    self.branch(IF_EQUAL, half(*value, *shift), Target::Next, fails);
                }
                self.goto(holds);
            }
            Test::Differs(value) => {
                for (shift, at) in halves {
                    self.plain(LOAD, *at);
                    self.branch(IF_EQUAL, half(*value, *shift), Target::Next, holds);
                }
                self.goto(fails);
            }
            Test::Outside { mask, ranges } => {
                self.plain(LOAD, low);
                if *mask != u32::MAX {
                    self.plain(AND, *mask);
                }
                self.search(&leaves(ranges, fails, holds));
            }
        }
    }

    /// Eight bytes an instruction, in the machine's byte order.
    ///
    /// Written from the end, since jumps lead forward only: the place of every target is known then. A conditional
    /// jump reaches 255 instructions; one that has to go further goes to an instruction right behind it, which returns
    /// or jumps.
    fn assemble(&self) -> Result<Vec<u8>, String> {
        let mut program = Backwards { labels: vec![None; self.labels], ..Backwards::default() };
        let mut next = Target::Next;
        for step in self.steps.iter().rev() {
            match step {
                Step::Here(label) => {
                    program.labels[*label] = Some(program.follow(next)?);
                }
                Step::Plain { code, k } => {
                    program.follow(next)?;
                    program.emit(*code, [0, 0], *k);
                }
                Step::Goto(target) => {
                    next = *target; // the comparison before it goes there by itself, if it can
                    continue;
                }
                Step::Branch { code, k, holds, fails } => {
                    let or_next =
                        |target: Target| if target == Target::Next { next } else { target };
                    program.branch(*code, *k, or_next(*holds), or_next(*fails))?;
                }
            }
            next = Target::Next;
        }
        let length = program.instructions.len();
        if length > 4096 {
            return Err(format!(
                "the program has {length} instructions, more than the kernel takes"
            ));
        }
        Ok(program.instructions.into_iter().rev().flatten().collect())
    }
}

/// A program while it is written, the last instruction first. A place in it is the number of instructions from there
/// to the end.
#[derive(Default)]
struct Backwards {
    instructions: Vec<[u8; 8]>,
    labels: Vec<Option<usize>>,
    /// The first instruction that returns this.
    returns: BTreeMap<u32, usize>,
}

impl Backwards {
    fn here(&self) -> usize {
        self.instructions.len()
    }

    fn emit(&mut self, code: u16, jumps: [u8; 2], k: u32) {
        let ([c0, c1], [k0, k1, k2, k3]) = (code.to_ne_bytes(), k.to_ne_bytes());
        self.instructions.push([c0, c1, jumps[0], jumps[1], k0, k1, k2, k3]);
        if code == RETURN {
            self.returns.insert(k, self.here());
        }
    }

    /// Where it is, if it is anywhere yet.
    fn place(&self, target: Target) -> Result<Option<usize>, String> {
        match target {
            Target::Next => Ok(Some(self.here())),
            Target::Label(label) => match self.labels[label] {
                None => Err("a jump backwards, or to nowhere".to_owned()),
                place => Ok(place),
            },
            Target::Return(answer) => Ok(self.returns.get(&answer).copied()),
        }
    }

    /// An instruction that leads there, unless that is what follows anyway.
    fn follow(&mut self, target: Target) -> Result<usize, String> {
        let place = self.place(target)?;
        match (target, place) {
            (_, Some(place)) if place == self.here() => {}
            (Target::Return(answer), _) => self.emit(RETURN, [0, 0], answer),
            (_, place) => {
                let distance = self.here() - place.ok_or("a jump to nowhere")?;
                let distance = u32::try_from(distance).map_err(|_| "a jump too far")?;
                self.emit(JUMP, [0, 0], distance);
            }
        }
        Ok(self.here())
    }

    fn branch(&mut self, code: u16, k: u32, holds: Target, fails: Target) -> Result<(), String> {
        let (mut to_holds, mut to_fails) = (self.place(holds)?, self.place(fails)?);
        let jumps = loop {
            let reach = |place: Option<usize>| {
                place.and_then(|place| u8::try_from(self.here() - place).ok())
            };
            match (reach(to_holds), reach(to_fails)) {
                (Some(holds), Some(fails)) => break [holds, fails],
                (None, _) => to_holds = Some(self.follow(holds)?),
                (_, None) => to_fails = Some(self.follow(fails)?),
            }
        };
        self.emit(code, jumps, k);
        Ok(())
    }
}

/// The search with the fewest comparisons, and of those the one with the shortest way.
fn plan_search(ranges: &[(u32, Target)]) -> Option<Search> {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Cost {
        comparisons: usize,
        depth: usize,
    }
    const SINGLE: usize = usize::MAX;
    let count = ranges.len();
    // For `count` ranges from `first` on: what it costs, and how many of them are the lower part.
    let none = (Cost { comparisons: 0, depth: 0 }, 0);
    let mut best = vec![vec![none; count + 1]; count];
    let single = |first: usize| match &ranges[first..] {
        [(_, before), (number, its), (end, after), ..] if before == after && *end == number + 1 => {
            Some((*number, *its, *before))
        }
        _ => None,
    };
    for length in 2..=count {
        for first in 0..=count - length {
            let parts = (1..length).map(|low| {
                let (low_cost, high_cost) = (best[first][low].0, best[first + low][length - low].0);
                let comparisons = 1 + low_cost.comparisons + high_cost.comparisons;
                (Cost { comparisons, depth: 1 + low_cost.depth.max(high_cost.depth) }, low)
            });
            let one = (length == 3 && single(first).is_some())
                .then_some((Cost { comparisons: 1, depth: 1 }, SINGLE));
            let cheapest = parts.chain(one).min()?;
            best[first][length] = cheapest;
        }
    }
    fn build(
        ranges: &[(u32, Target)],
        first: usize,
        length: usize,
        part: &dyn Fn(usize, usize) -> usize,
        single: &dyn Fn(usize) -> Option<(u32, Target, Target)>,
    ) -> Option<Search> {
        if length == 1 {
            return Some(Search::Leaf(ranges.get(first)?.1));
        }
        let low = part(first, length);
        if low == SINGLE {
            let (number, its, others) = single(first)?;
            return Some(Search::Single { number, its, others });
        }
        Some(Search::Split {
            at: ranges.get(first + low)?.0,
            low: Box::new(build(ranges, first, low, part, single)?),
            high: Box::new(build(ranges, first + low, length - low, part, single)?),
        })
    }
    if count == 0 {
        return None;
    }
    build(ranges, 0, count, &|first, length| best[first][length].1, &single)
}

/// The whole line of numbers, cut where a range begins or ends.
fn leaves(ranges: &[(u32, u32)], inside: Target, outside: Target) -> Vec<(u32, Target)> {
    let mut leaves = vec![(0, outside)];
    for (first, last) in ranges {
        leaves.retain(|(start, _)| start != first); // there is nothing between it and the one before
        leaves.push((*first, inside));
        leaves.extend(last.checked_add(1).map(|next| (next, outside)));
    }
    leaves
}
