//! Decides after each iteration whether the loop continues, when, and why it stops. Pure: no I/O.

use std::time::Duration;

use belljar_spec::{
    AgentSpec, AgentTotals, AgentWork, Budget, Failure, LoopSpec, MAX_BACKOFF, Money, StopReason,
    TokenUsage, Until, counted,
};

use crate::agent::Remaining;

/// What the loop does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoopDecision {
    Iterate { number: u32, after: Duration },
    Stop { reason: StopReason, why: String },
}

/// The result of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IterationOutcome {
    pub(crate) failure: Option<Failure>,
    pub(crate) turns: u64,
    pub(crate) usage: TokenUsage,
    pub(crate) changed: u64,
    pub(crate) done: Option<bool>,
    /// Time of the loop in this run so far.
    pub(crate) elapsed: Duration,
}

#[derive(Debug)]
pub(crate) struct Loop {
    agent: AgentSpec,
    spec: LoopSpec,
    totals: AgentTotals,
    /// Time of the loop before this run.
    earlier: Duration,
    run_iterations: u32,
    done: bool,
    last_failure: Option<Failure>,
}

impl Loop {
    pub(crate) fn new(work: &AgentWork, totals: AgentTotals) -> Self {
        Self {
            agent: work.agent.clone(),
            spec: work.repeat.clone(),
            earlier: Duration::from_millis(totals.elapsed_ms),
            totals,
            run_iterations: 0,
            done: false,
            last_failure: None,
        }
    }

    /// The totals of all finished iterations, and the time of the loop so far.
    pub(crate) fn totals_at(&self, elapsed: Duration) -> AgentTotals {
        let elapsed = (self.earlier + elapsed).as_millis();
        AgentTotals {
            elapsed_ms: u64::try_from(elapsed).unwrap_or(u64::MAX),
            ..self.totals.clone()
        }
    }

    /// Iterations in this run.
    pub(crate) fn run_iterations(&self) -> u32 {
        self.run_iterations
    }

    /// How the last iteration failed, if it did.
    pub(crate) fn last_failure(&self) -> Option<&Failure> {
        self.last_failure.as_ref()
    }

    /// Whether to continue. `elapsed` is the time of the loop in this run.
    pub(crate) fn next(&self, elapsed: Duration) -> LoopDecision {
        let stop = |reason, why: String| LoopDecision::Stop { reason, why };
        let AgentTotals { iterations, turns, usage, failures_in_a_row, unchanged_in_a_row, .. } =
            &self.totals;
        let spec = &self.spec;
        if self.done {
            return stop(StopReason::Done, until_met(spec.until.as_ref(), *iterations));
        }
        if spec.max_iterations.is_some_and(|most| *iterations >= most) {
            return stop(StopReason::MaxIterations, times(*iterations, "iteration"));
        }
        if spec.max_failures.is_some_and(|most| *failures_in_a_row >= most.max(1)) {
            let why = format!("{} in a row", times(*failures_in_a_row, "failure"));
            return stop(StopReason::Failures, why);
        }
        if spec.max_unchanged.is_some_and(|most| *unchanged_in_a_row >= most.max(1)) {
            let why =
                format!("{} in a row changed nothing", times(*unchanged_in_a_row, "iteration"));
            return stop(StopReason::Unchanged, why);
        }
        if let Some((budget, why)) = self.used_up(*turns, usage, elapsed) {
            return stop(reason_of(budget), why);
        }
        LoopDecision::Iterate { number: iterations + 1, after: self.pause() }
    }

    /// The budget of the loop that is used up, if any.
    fn used_up(
        &self,
        turns: u64,
        usage: &TokenUsage,
        elapsed: Duration,
    ) -> Option<(Budget, String)> {
        let spec = &self.spec;
        let elapsed = self.earlier + elapsed;
        if spec.max_time.is_some_and(|most| elapsed >= most) {
            return Some((Budget::Time, format!("{} s of the loop's time", elapsed.as_secs())));
        }
        if spec.max_cost.is_some_and(|most| usage.cost_usd >= most) {
            return Some((Budget::Cost, usage.cost_usd.to_string()));
        }
        if spec.max_turns.is_some_and(|most| turns >= most) {
            return Some((Budget::Turns, format!("{turns} turns")));
        }
        if spec.max_tokens.is_some_and(|most| usage.tokens() >= most) {
            return Some((Budget::Tokens, format!("{} tokens", usage.tokens())));
        }
        None
    }

    /// The pause before the next iteration; none before the first one of a run.
    fn pause(&self) -> Duration {
        match self.totals.failures_in_a_row {
            _ if self.run_iterations == 0 => Duration::ZERO,
            0 => self.spec.pause,
            failures => {
                let factor = 1u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
                let backoff = self.spec.backoff.saturating_mul(factor).min(MAX_BACKOFF);
                backoff.max(self.spec.pause)
            }
        }
    }

    /// What the next iteration may use, for agents that accept limits on turns and cost.
    pub(crate) fn remaining(&self) -> Remaining {
        let least = |one: Option<u64>, all: Option<u64>| match (one, all) {
            (Some(one), Some(all)) => Some(one.min(all)),
            (one, all) => one.or(all),
        };
        let turns = self.spec.max_turns.map(|most| most.saturating_sub(self.totals.turns));
        let cost = self.spec.max_cost.map(|most| most.minus(self.totals.usage.cost_usd));
        let cost = match (self.agent.max_cost, cost) {
            (Some(one), Some(all)) => Some(one.min(all)),
            (one, all) => one.or(all),
        };
        Remaining { turns: least(self.agent.max_turns, turns), cost }
    }

    /// The budget that a running iteration has used up: its own, or the rest of the loop's.
    pub(crate) fn breach(
        &self,
        turns: u64,
        usage: &TokenUsage,
        elapsed: Duration,
    ) -> Option<Budget> {
        let AgentSpec { max_turns, max_cost, max_tokens, .. } = &self.agent;
        if max_cost.is_some_and(|most| usage.cost_usd > most) {
            return Some(Budget::Cost);
        }
        if max_turns.is_some_and(|most| turns > most) {
            return Some(Budget::Turns);
        }
        if max_tokens.is_some_and(|most| usage.tokens() > most) {
            return Some(Budget::Tokens);
        }
        let mut all = self.totals.usage;
        all.add(usage);
        // The last allowed turn may finish.
        let turns = self.totals.turns.saturating_add(turns).saturating_sub(1);
        self.used_up(turns, &all, elapsed).map(|(budget, _)| budget)
    }

    /// The budget that a finished iteration has exceeded: its own, or the rest of the loop's.
    pub(crate) fn overspent(&self, turns: u64, usage: &TokenUsage) -> Option<Budget> {
        let mut all = self.totals.usage;
        all.add(usage);
        let all_turns = self.totals.turns.saturating_add(turns);
        let AgentSpec { max_turns, max_cost, max_tokens, .. } = &self.agent;
        let is_more = |used: u64, most: Option<u64>| most.is_some_and(|most| used > most);
        let costs_more = |used: Money, most: Option<Money>| most.is_some_and(|most| used > most);
        let spec = &self.spec;
        if costs_more(usage.cost_usd, *max_cost) || costs_more(all.cost_usd, spec.max_cost) {
            Some(Budget::Cost)
        } else if is_more(turns, *max_turns) || is_more(all_turns, spec.max_turns) {
            Some(Budget::Turns)
        } else if is_more(usage.tokens(), *max_tokens) || is_more(all.tokens(), spec.max_tokens) {
            Some(Budget::Tokens)
        } else {
            None
        }
    }

    /// The time until the loop's time limit.
    pub(crate) fn time_left(&self, elapsed: Duration) -> Option<Duration> {
        let most = self.spec.max_time?;
        Some(most.saturating_sub(self.earlier + elapsed))
    }

    /// The totals including this iteration.
    pub(crate) fn with(&self, ended: &IterationOutcome) -> AgentTotals {
        let AgentTotals { iterations, turns, usage, failures_in_a_row, unchanged_in_a_row, .. } =
            &self.totals;
        let mut usage = *usage;
        usage.add(&ended.usage);
        let failed = ended.failure.is_some();
        let unchanged = ended.changed == 0;
        AgentTotals {
            iterations: iterations.saturating_add(1),
            turns: counted(*turns, ended.turns),
            usage,
            elapsed_ms: u64::try_from((self.earlier + ended.elapsed).as_millis())
                .unwrap_or(u64::MAX),
            failures_in_a_row: if failed { failures_in_a_row.saturating_add(1) } else { 0 },
            // A failed iteration does not show that there is nothing left to do.
            unchanged_in_a_row: match (unchanged, failed) {
                (false, _) => 0,
                (true, true) => *unchanged_in_a_row,
                (true, false) => unchanged_in_a_row.saturating_add(1),
            },
        }
    }

    /// Counts an iteration. Called when its checkpoint is on disk.
    pub(crate) fn finished(&mut self, ended: &IterationOutcome) {
        self.totals = self.with(ended);
        self.run_iterations += 1;
        self.done = ended.done == Some(true);
        self.last_failure = ended.failure.clone();
    }
}

pub(crate) fn reason_of(budget: Budget) -> StopReason {
    match budget {
        Budget::Time => StopReason::MaxTime,
        Budget::Cost => StopReason::MaxCost,
        Budget::Turns => StopReason::MaxTurns,
        Budget::Tokens => StopReason::MaxTokens,
    }
}

/// Says which condition ended the loop.
fn until_met(until: Option<&Until>, iteration: u32) -> String {
    match until {
        Some(Until::File { path }) => format!("{path} appeared after iteration {iteration}"),
        Some(Until::Says { phrase }) => {
            let phrase = belljar_spec::text::escape(phrase.as_bytes());
            format!("the agent ended iteration {iteration} with \"{phrase}\"")
        }
        Some(Until::Command { .. }) | None => {
            format!("the until command succeeded after iteration {iteration}")
        }
    }
}

fn times(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use belljar_spec::manifest::{AgentKind, Auth, Permissions};

    use super::*;

    fn work(repeat: LoopSpec) -> AgentWork {
        let agent = AgentSpec {
            kind: AgentKind::Command,
            program: vec!["agent".into()],
            format: None,
            prompt: String::new(),
            model: None,
            args: Vec::new(),
            permissions: Permissions::Bypass,
            auth: Auth::Secret,
            max_turns: None,
            max_cost: None,
            max_tokens: None,
        };
        AgentWork { agent, setup: None, repeat }
    }

    fn endless() -> LoopSpec {
        LoopSpec { max_iterations: None, ..LoopSpec::once() }
    }

    fn cost(dollars: f64) -> TokenUsage {
        let cost_usd = Money::from_dollars(dollars).unwrap();
        TokenUsage { input_tokens: 100, output_tokens: 10, cached_tokens: 0, cost_usd }
    }

    /// Repeats the same iteration until the loop stops; returns the number of iterations and the reason.
    fn until_stopped(work: &AgentWork, mut one: IterationOutcome) -> (u32, StopReason) {
        let mut state = Loop::new(work, AgentTotals::default());
        for _ in 0..1000 {
            match state.next(one.elapsed) {
                LoopDecision::Stop { reason, .. } => return (state.run_iterations(), reason),
                LoopDecision::Iterate { number, .. } => {
                    assert_eq!(number, state.run_iterations() + 1)
                }
            }
            one.elapsed += Duration::from_secs(60);
            state.finished(&one);
        }
        panic!("it never stops");
    }

    #[test]
    fn every_limit_has_its_own_reason() {
        let good = || IterationOutcome {
            changed: 1,
            turns: 3,
            usage: cost(0.25),
            ..IterationOutcome::default()
        };
        let with = |change: fn(&mut LoopSpec)| {
            let mut spec = endless();
            change(&mut spec);
            work(spec)
        };
        use StopReason::*;
        let cases: [(AgentWork, IterationOutcome, u32, StopReason); 10] = [
            (with(|spec| spec.max_iterations = Some(0)), good(), 0, MaxIterations),
            (with(|spec| spec.max_iterations = Some(4)), good(), 4, MaxIterations),
            (with(|spec| spec.max_time = Some(Duration::from_secs(300))), good(), 5, MaxTime),
            (with(|spec| spec.max_cost = Money::from_dollars(1.0)), good(), 4, MaxCost),
            (with(|spec| spec.max_turns = Some(7)), good(), 3, MaxTurns),
            (with(|spec| spec.max_tokens = Some(500)), good(), 5, MaxTokens),
            (
                with(|spec| spec.max_unchanged = Some(2)),
                IterationOutcome { changed: 0, ..good() },
                2,
                Unchanged,
            ),
            (
                with(|spec| spec.max_failures = Some(3)),
                IterationOutcome { failure: Some(Failure::Idle), ..good() },
                3,
                Failures,
            ),
            (
                with(|spec| spec.until = Some(Until::File { path: "DONE".into() })),
                IterationOutcome { done: Some(true), ..good() },
                1,
                Done,
            ),
            (work(LoopSpec::once()), good(), 1, MaxIterations),
        ];
        for (work, one, times, reason) in cases {
            assert_eq!(until_stopped(&work, one), (times, reason), "{:?}", work.repeat);
        }
    }

    #[test]
    fn failures_are_waited_for_longer_and_longer() {
        let mut spec = endless();
        spec.backoff = Duration::from_secs(10);
        spec.pause = Duration::from_secs(1);
        let mut state = Loop::new(&work(spec), AgentTotals::default());
        let mut pauses = Vec::new();
        for failed in [false, true, true, true, false, true] {
            let LoopDecision::Iterate { after, .. } = state.next(Duration::ZERO) else { panic!() };
            pauses.push(after.as_secs());
            let failure = failed.then_some(Failure::Idle);
            state.finished(&IterationOutcome {
                failure,
                changed: 1,
                ..IterationOutcome::default()
            });
        }
        assert_eq!(pauses, [0, 1, 10, 20, 40, 1]);
        state.totals.failures_in_a_row = 40;
        assert_eq!(state.pause(), MAX_BACKOFF);
    }

    #[test]
    fn budgets_go_on_where_the_run_before_stopped() {
        let mut spec = endless();
        spec.max_cost = Money::from_dollars(2.0);
        spec.max_turns = Some(10);
        spec.max_time = Some(Duration::from_secs(100));
        let before = AgentTotals {
            iterations: 3,
            turns: 8,
            usage: cost(1.5),
            elapsed_ms: 90_000,
            ..AgentTotals::default()
        };
        let state = Loop::new(&work(spec), before);
        assert!(matches!(state.next(Duration::ZERO), LoopDecision::Iterate { number: 4, .. }));
        assert_eq!(state.remaining().turns, Some(2));
        assert_eq!(state.remaining().cost, Money::from_dollars(0.5));
        assert_eq!(state.time_left(Duration::from_secs(4)), Some(Duration::from_secs(6)));
        let breach =
            |turns, usage: &TokenUsage, secs| state.breach(turns, usage, Duration::from_secs(secs));
        assert_eq!(breach(2, &cost(0.4), 1), None);
        assert_eq!(breach(3, &cost(0.4), 1), Some(Budget::Turns));
        assert_eq!(breach(1, &cost(0.5), 1), Some(Budget::Cost));
        assert_eq!(breach(1, &cost(0.1), 10), Some(Budget::Time));
    }

    #[test]
    fn all_of_a_budget_may_be_used_and_no_more() {
        let mut work = work(LoopSpec::once());
        let spent = |work: &AgentWork, turns, dollars| {
            Loop::new(work, AgentTotals::default()).overspent(turns, &cost(dollars))
        };
        assert_eq!(spent(&work, 1000, 1000.0), None, "the control");
        work.repeat.max_cost = Money::from_dollars(1.0);
        assert_eq!(spent(&work, 1, 1.0), None);
        assert_eq!(spent(&work, 1, 1.01), Some(Budget::Cost));
        work.agent.max_cost = Money::from_dollars(0.5);
        assert_eq!(spent(&work, 1, 0.6), Some(Budget::Cost));
        work.agent.max_turns = Some(3);
        assert_eq!(spent(&work, 4, 0.1), Some(Budget::Turns));
        work.repeat.max_tokens = Some(50);
        assert_eq!(spent(&work, 1, 0.1), Some(Budget::Tokens));
    }

    #[test]
    fn a_failure_does_not_count_as_nothing_to_do() {
        let mut spec = endless();
        spec.max_unchanged = Some(2);
        let mut state = Loop::new(&work(spec), AgentTotals::default());
        let unchanged = IterationOutcome::default();
        let failed =
            IterationOutcome { failure: Some(Failure::Idle), ..IterationOutcome::default() };
        for one in [&unchanged, &failed, &failed] {
            state.finished(one);
            assert!(matches!(state.next(Duration::ZERO), LoopDecision::Iterate { .. }));
        }
        state.finished(&unchanged);
        let LoopDecision::Stop { reason, .. } = state.next(Duration::ZERO) else { panic!() };
        assert_eq!(reason, StopReason::Unchanged);
    }
}
