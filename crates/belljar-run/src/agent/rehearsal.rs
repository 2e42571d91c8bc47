//! What the supervisor does with an agent, without a sandbox around it: for tests and benchmarks.

use belljar_spec::{AgentNews, AgentSpec, Exit, Failure, Money, OsText, TokenUsage};

use super::{Listener, Remaining, SessionTotals, SessionUse, adapter};

/// A session from one run of the agent to the next.
#[derive(Clone, Debug, Default)]
pub struct Rehearsal {
    session: Option<String>,
    totals: SessionTotals,
}

/// What came of one run.
#[derive(Clone, Debug)]
pub struct Heard {
    pub news: Vec<AgentNews>,
    pub failure: Option<Failure>,
    pub usage: TokenUsage,
    pub turns: u64,
    pub unparsed: u64,
    pub final_text: String,
}

impl Rehearsal {
    /// How the agent is called now, and what it is given on standard input.
    pub fn call(
        &self,
        spec: &AgentSpec,
        turns: Option<u64>,
        cost: Option<Money>,
    ) -> (Vec<OsText>, Vec<u8>) {
        let session = match &self.session {
            Some(id) => SessionUse::Continue { id: id.clone() },
            None => SessionUse::New { id: "00000000-0000-4000-8000-000000000001".to_owned() },
        };
        let called = adapter(spec.kind).invocation(spec, &session, Remaining { turns, cost });
        (called.argv, called.stdin)
    }

    /// Its whole output, in pieces as a pipe has them.
    pub fn hear(&mut self, spec: &AgentSpec, output: &[u8], exit: Exit) -> Heard {
        let mut listener = Listener::new(adapter(spec.kind).reader_after(self.totals));
        let mut news = Vec::new();
        for piece in output.chunks(64 << 10) {
            news.extend(listener.feed(piece));
        }
        news.extend(listener.finish());
        self.totals = listener.totals();
        let summary = listener.summary();
        self.session = summary.session.clone().or(self.session.take());
        Heard {
            news,
            failure: listener.failure(exit),
            usage: summary.usage,
            turns: summary.turns,
            unparsed: summary.unparsed,
            final_text: summary.final_text.clone(),
        }
    }
}
