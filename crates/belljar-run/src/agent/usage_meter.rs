//! Counts the tokens, cost and turns of one agent run from what the agent reports.

use std::collections::HashMap;

use belljar_spec::{AgentEvent, Money, SessionTotals, TokenUsage, counted};

/// More messages than any agent has in progress at once.
const MAX_MESSAGES: usize = 4096;

/// The usage of one agent run, computed from single messages and from totals. Never decreases: no report of an agent
/// gives tokens or money back.
#[derive(Debug, Default)]
pub(super) struct UsageMeter {
    before: SessionTotals,
    /// Emitted as events so far.
    counted: TokenUsage,
    /// The part of it that single messages reported.
    messages: TokenUsage,
    /// By the hash of the message id, whose length the agent chooses.
    seen: HashMap<blake3::Hash, TokenUsage>,
    reported: Option<SessionTotals>,
    turns: u64,
}

impl UsageMeter {
    pub(super) fn after(before: SessionTotals) -> Self {
        Self { before, ..Self::default() }
    }

    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn turn(&mut self) {
        self.turns = counted(self.turns, 1);
    }

    pub(super) fn knows(&self, message: &str) -> bool {
        self.seen.contains_key(&blake3::hash(message.as_bytes()))
    }

    /// Usage of one message. A format may repeat it with every part of the message, or let it grow.
    pub(super) fn message(&mut self, id: &str, usage: TokenUsage, events: &mut Vec<AgentEvent>) {
        if self.seen.len() >= MAX_MESSAGES {
            self.seen.clear(); // at worst something is counted twice, never missed
        }
        let more = if id.is_empty() {
            usage
        } else {
            let known = self.seen.entry(blake3::hash(id.as_bytes())).or_default();
            let more = beyond(&usage, known);
            known.add(&more);
            more
        };
        self.messages.add(&more);
        self.count(more, events);
    }

    /// A total: of this run, or of the whole session, depending on the version of the agent.
    pub(super) fn total(&mut self, total: TokenUsage, turns: u64, events: &mut Vec<AgentEvent>) {
        let share = self.share_of_this_run(&total, turns);
        self.turns = self.turns.max(share.turns);
        let more = beyond(&share.usage, &self.counted);
        self.count(more, events);
        let before = self.reported.unwrap_or_default();
        let mut highest = before.usage;
        highest.add(&beyond(&total, &before.usage));
        self.reported = Some(SessionTotals { usage: highest, turns: before.turns.max(turns) });
    }

    /// The part of a total that belongs to this run. Versions differ in whether the totals of a resumed session start
    /// again at zero. A total that is not above the previous one did; otherwise the messages of this run decide.
    fn share_of_this_run(&self, total: &TokenUsage, turns: u64) -> SessionTotals {
        let whole = SessionTotals { usage: *total, turns };
        let before = &self.before.usage;
        let started_again = total.input_tokens < before.input_tokens
            || total.output_tokens < before.output_tokens
            || total.cost_usd < before.cost_usd;
        let rest = beyond(total, before);
        let shown = self.messages.input_tokens;
        let nearer_whole =
            shown > 0 && total.input_tokens.abs_diff(shown) <= rest.input_tokens.abs_diff(shown);
        // A total of the session grows with every response.
        let is_unchanged = *total == *before;
        if started_again || is_unchanged || nearer_whole {
            return whole;
        }
        SessionTotals { usage: rest, turns: turns.saturating_sub(self.before.turns) }
    }

    fn count(&mut self, more: TokenUsage, events: &mut Vec<AgentEvent>) {
        if more != TokenUsage::default() {
            self.counted.add(&more);
            events.push(AgentEvent::Usage(more));
        }
    }

    /// For the next run in the same session. If no total was reported, what was counted.
    pub(super) fn totals(&self) -> SessionTotals {
        self.reported.unwrap_or_else(|| {
            let mut usage = self.before.usage;
            usage.add(&self.counted);
            SessionTotals { usage, turns: counted(self.before.turns, self.turns) }
        })
    }
}

/// The difference per counter, never below zero.
fn beyond(more: &TokenUsage, less: &TokenUsage) -> TokenUsage {
    TokenUsage {
        input_tokens: more.input_tokens.saturating_sub(less.input_tokens),
        output_tokens: more.output_tokens.saturating_sub(less.output_tokens),
        cached_tokens: more.cached_tokens.saturating_sub(less.cached_tokens),
        cost_usd: more.cost_usd.minus(less.cost_usd),
    }
}

/// An amount that an agent reports. An invalid one becomes an error event and counts as zero.
pub(super) fn money(value: Option<&serde_json::Value>, events: &mut Vec<AgentEvent>) -> Money {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Money::ZERO };
    value.as_f64().and_then(Money::from_dollars).unwrap_or_else(|| {
        let shown = super::json::compact(value);
        let message = format!("the agent reported a cost of {shown}, which is not a valid amount");
        events.push(AgentEvent::Error { message });
        Money::ZERO
    })
}
