//! Sums that agents tell, made into differences.

use std::collections::HashMap;

use belljar_spec::{AgentNews, Money, SessionTotals, TokenUsage, counted};

/// More messages than any agent has open at once.
const MOST_MESSAGES: usize = 4096;

/// What one run of an agent has used, out of single messages and of sums. Never goes down: nothing that an agent says
/// gives tokens or money back.
#[derive(Debug, Default)]
pub(super) struct Meter {
    before: SessionTotals,
    /// Told so far, as news.
    counted: TokenUsage,
    /// Of that, what single messages said.
    messages: TokenUsage,
    /// By the hash of its name, which the agent makes as long as it likes.
    seen: HashMap<blake3::Hash, TokenUsage>,
    told: Option<SessionTotals>,
    turns: u64,
}

impl Meter {
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

    /// One message's own use. A format may repeat it with every part of the message, or let it grow.
    pub(super) fn message(&mut self, id: &str, usage: TokenUsage, news: &mut Vec<AgentNews>) {
        if self.seen.len() >= MOST_MESSAGES {
            self.seen.clear(); // at worst something is counted twice, never too little
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
        self.count(more, news);
    }

    /// A sum: of this run of the agent, or of its whole session, as the version has it.
    pub(super) fn total(&mut self, total: TokenUsage, turns: u64, news: &mut Vec<AgentNews>) {
        let own = self.own_share(&total, turns);
        self.turns = self.turns.max(own.turns);
        let more = beyond(&own.usage, &self.counted);
        self.count(more, news);
        let before = self.told.unwrap_or_default();
        let mut highest = before.usage;
        highest.add(&beyond(&total, &before.usage));
        self.told = Some(SessionTotals { usage: highest, turns: before.turns.max(turns) });
    }

    /// What of a sum belongs to this run of the agent. Versions differ in whether a resumed session's sums begin anew:
    /// a sum below what it was, or just what it was, did, and else the messages that this run showed tell which of the two is meant.
    fn own_share(&self, total: &TokenUsage, turns: u64) -> SessionTotals {
        let whole = SessionTotals { usage: *total, turns };
        let before = &self.before.usage;
        let began_anew = total.input_tokens < before.input_tokens
            || total.output_tokens < before.output_tokens
            || total.cost_usd < before.cost_usd;
        let rest = beyond(total, before);
        let shown = self.messages.input_tokens;
        let nearer_whole =
            shown > 0 && total.input_tokens.abs_diff(shown) <= rest.input_tokens.abs_diff(shown);
        // A sum that goes on grows with every answer.
        let stands_still = *total == *before;
        if began_anew || stands_still || nearer_whole {
            return whole;
        }
        SessionTotals { usage: rest, turns: turns.saturating_sub(self.before.turns) }
    }

    fn count(&mut self, more: TokenUsage, news: &mut Vec<AgentNews>) {
        if more != TokenUsage::default() {
            self.counted.add(&more);
            news.push(AgentNews::Usage(more));
        }
    }

    /// For the next run in the same session. Where none was told, what was counted.
    pub(super) fn totals(&self) -> SessionTotals {
        self.told.unwrap_or_else(|| {
            let mut usage = self.before.usage;
            usage.add(&self.counted);
            SessionTotals { usage, turns: counted(self.before.turns, self.turns) }
        })
    }
}

/// What the first has more of than the second, part by part.
fn beyond(more: &TokenUsage, less: &TokenUsage) -> TokenUsage {
    TokenUsage {
        input_tokens: more.input_tokens.saturating_sub(less.input_tokens),
        output_tokens: more.output_tokens.saturating_sub(less.output_tokens),
        cached_tokens: more.cached_tokens.saturating_sub(less.cached_tokens),
        cost_usd: more.cost_usd.minus(less.cost_usd),
    }
}

/// An amount that an agent names. What is none is told, and counts nothing.
pub(super) fn money(value: Option<&serde_json::Value>, news: &mut Vec<AgentNews>) -> Money {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Money::ZERO };
    value.as_f64().and_then(Money::from_dollars).unwrap_or_else(|| {
        let shown = super::json::compact(value);
        let message = format!("the agent says that it cost {shown}, which is no amount");
        news.push(AgentNews::Error { message });
        Money::ZERO
    })
}
