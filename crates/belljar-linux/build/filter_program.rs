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

enum Step {
    Plain {
        code: u16,
        k: u32,
    },
    /// On a match go there, else go on.
    When {
        code: u16,
        k: u32,
        there: Label,
    },
    Jump(Label),
    Here(Label),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Return(u32),
    /// The rules of one call, by their number.
    Rules(usize),
}

/// Where a search ends.
#[derive(Clone, Copy)]
enum Leaf {
    Return(u32),
    Go(Label),
}

/// The position of each part in the program.
struct Placed {
    /// For each step, whether it is a conditional jump that goes too far for one instruction.
    far: Vec<bool>,
    /// For each label.
    places: Vec<Option<u32>>,
    /// Of the whole program.
    length: u32,
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
    let mut rules: Vec<&Vec<Rule>> = Vec::new();
    let mut ranges: Vec<(u32, Action)> = vec![(0, Action::Return(ERRNO | ENOSYS))];
    let last = verdicts.keys().next_back().copied().unwrap_or(0);
    for number in 0..=last + 1 {
        let action = match verdicts.get(&number) {
            None => Action::Return(ERRNO | ENOSYS),
            Some(Verdict::Allow) => Action::Return(ALLOW),
            Some(Verdict::Deny) => Action::Return(ERRNO | EPERM),
            Some(Verdict::DenyWhen(of_this_call)) => {
                rules.push(of_this_call);
                Action::Rules(rules.len() - 1)
            }
        };
        match ranges.last_mut() {
            Some((start, before)) if *start == number => *before = action,
            Some((_, before)) if *before == action => {}
            _ => ranges.push((number, action)),
        }
    }

    let mut program = Assembler::default();
    program.plain(LOAD, ARCH_AT);
    let right_arch = program.label();
    program.when(IF_EQUAL, audit_arch, right_arch);
    program.plain(RETURN, KILL_PROCESS);
    program.here(right_arch);
    program.plain(LOAD, NUMBER_AT);
    let known_mode = program.label();
    if has_x32 {
        let x32 = program.label();
        // A debugger that cancels a call sets its number to -1.
        program.when(IF_EQUAL, u32::MAX, known_mode);
        program.when(IF_AT_LEAST, X32_BIT, x32);
        program.jump(known_mode);
        program.here(x32);
        program.plain(RETURN, KILL_PROCESS);
    }
    program.here(known_mode);
    let at: Vec<Label> = rules.iter().map(|_| program.label()).collect();
    let leaf = |action: Action| match action {
        Action::Return(answer) => Leaf::Return(answer),
        Action::Rules(index) => Leaf::Go(at[index]),
    };
    let ranges: Vec<(u32, Leaf)> =
        ranges.into_iter().map(|(start, action)| (start, leaf(action))).collect();
    program.search(&ranges);
    for (label, of_one_call) in at.into_iter().zip(rules) {
        program.here(label);
        for rule in of_one_call {
            program.rule(rule);
        }
        program.plain(RETURN, ALLOW);
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

    fn when(&mut self, code: u16, k: u32, there: Label) {
        self.steps.push(Step::When { code, k, there });
    }

    fn jump(&mut self, there: Label) {
        self.steps.push(Step::Jump(there));
    }

    fn here(&mut self, label: Label) {
        self.steps.push(Step::Here(label));
    }

    /// Halves the ranges until one is left.
    fn search(&mut self, ranges: &[(u32, Leaf)]) {
        match ranges {
            [] => {}
            [(_, Leaf::Return(answer))] => self.plain(RETURN, *answer),
            [(_, Leaf::Go(label))] => self.jump(*label),
            _ => {
                let (low, high) = ranges.split_at(ranges.len() / 2);
                let upper = self.label();
                self.when(IF_AT_LEAST, high[0].0, upper);
                self.search(low);
                self.here(upper);
                self.search(high);
            }
        }
    }

    /// Its answer if every condition holds, else on to what follows.
    fn rule(&mut self, rule: &Rule) {
        let not_this = self.label();
        for condition in &rule.conditions {
            self.condition(condition, not_this);
        }
        self.plain(RETURN, ERRNO | rule.errno);
        self.here(not_this);
    }

    fn condition(&mut self, condition: &Condition, not_this: Label) {
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
                    self.unless_equal(half(*value, *shift), not_this);
                }
            }
            Test::Masked { mask, value } => {
                for (shift, at) in halves.iter().filter(|(shift, _)| half(*mask, *shift) != 0) {
                    self.plain(LOAD, *at);
                    self.plain(AND, half(*mask, *shift));
                    self.unless_equal(half(*value, *shift), not_this);
                }
            }
            Test::Differs(value) => {
                let differs = self.label();
                for (shift, at) in halves {
                    self.plain(LOAD, *at);
                    let same = self.label();
                    self.when(IF_EQUAL, half(*value, *shift), same);
                    self.jump(differs);
                    self.here(same);
                }
                self.jump(not_this);
                self.here(differs);
            }
            Test::Outside { mask, ranges } => {
                self.plain(LOAD, low);
                if *mask != u32::MAX {
                    self.plain(AND, *mask);
                }
                let outside = self.label();
                self.search(&leaves(ranges, Leaf::Go(not_this), Leaf::Go(outside)));
                self.here(outside);
            }
        }
    }

    fn unless_equal(&mut self, value: u32, not_this: Label) {
        let equal = self.label();
        self.when(IF_EQUAL, value, equal);
        self.jump(not_this);
        self.here(equal);
    }

    /// Eight bytes an instruction, in the machine's byte order. A conditional jump reaches only 255
    /// instructions; one that has to go further is followed by a jump that reaches everywhere.
    fn assemble(&self) -> Result<Vec<u8>, String> {
        let Placed { far, places, length } = self.place()?;
        if length > 4096 {
            return Err(format!(
                "the program has {length} instructions, more than the kernel takes"
            ));
        }
        let mut program = Vec::new();
        let mut emit = |code: u16, jump: [u8; 2], k: u32| {
            program.extend(code.to_ne_bytes());
            program.extend(jump);
            program.extend(k.to_ne_bytes());
        };
        let mut at = 0_u32;
        for (step, far) in self.steps.iter().zip(far) {
            match step {
                Step::Plain { code, k } => {
                    emit(*code, [0, 0], *k);
                    at += 1;
                }
                Step::Jump(there) => {
                    emit(JUMP, [0, 0], distance(&places, at, *there)?);
                    at += 1;
                }
                Step::When { code, k, there } if far => {
                    emit(*code, [0, 1], *k);
                    emit(JUMP, [0, 0], distance(&places, at + 1, *there)?);
                    at += 2;
                }
                Step::When { code, k, there } => {
                    let reach = u8::try_from(distance(&places, at, *there)?);
                    emit(*code, [reach.map_err(|_| "a jump too far")?, 0], *k);
                    at += 1;
                }
                Step::Here(_) => {}
            }
        }
        Ok(program)
    }

    /// Making one jump longer can only push others further, so this comes to an end.
    fn place(&self) -> Result<Placed, String> {
        let mut far = vec![false; self.steps.len()];
        loop {
            let mut places = vec![None; self.labels];
            let mut starts = Vec::with_capacity(self.steps.len());
            let mut length = 0_u32;
            for (step, far) in self.steps.iter().zip(&far) {
                starts.push(length);
                match step {
                    Step::Here(label) => places[*label] = Some(length),
                    Step::When { .. } if *far => length += 2,
                    _ => length += 1,
                }
            }
            let mut grew = false;
            for ((step, start), far) in self.steps.iter().zip(starts).zip(&mut far) {
                if let (Step::When { there, .. }, false) = (step, *far) {
                    *far = distance(&places, start, *there)? > u32::from(u8::MAX);
                    grew |= *far;
                }
            }
            if !grew {
                return Ok(Placed { far, places, length });
            }
        }
    }
}

/// How many instructions a jump passes over.
fn distance(places: &[Option<u32>], from: u32, to: Label) -> Result<u32, String> {
    let place = places[to].ok_or("a jump to nowhere")?;
    place.checked_sub(from + 1).ok_or_else(|| "a jump backwards".to_owned())
}

/// The whole line of numbers, cut where a range begins or ends.
fn leaves(ranges: &[(u32, u32)], inside: Leaf, outside: Leaf) -> Vec<(u32, Leaf)> {
    let mut leaves = vec![(0, outside)];
    for (first, last) in ranges {
        leaves.retain(|(start, _)| start != first); // there is nothing between it and the one before
        leaves.push((*first, inside));
        leaves.extend(last.checked_add(1).map(|next| (next, outside)));
    }
    leaves
}
