//! Builds an agent's command and parses its output as the supervisor does, without a sandbox; for tests and benchmarks.

use belljar_spec::{AgentEvent, AgentSpec, Exit, Failure, Money, OsText, TokenUsage};

use super::{OutputParser, Remaining, SessionTotals, SessionUse, adapter_for};

/// The state of a session between runs of the agent.
#[derive(Clone, Debug, Default)]
pub struct AgentReplay {
    session: Option<String>,
    totals: SessionTotals,
}

/// The parsed output of one run.
#[derive(Clone, Debug)]
pub struct ReplayedRun {
    pub events: Vec<AgentEvent>,
    pub failure: Option<Failure>,
    pub usage: TokenUsage,
    pub turns: u64,
    pub unparsed: u64,
    pub final_text: String,
}

impl AgentReplay {
    /// The arguments of the next run, and its standard input.
    pub fn command(
        &self,
        spec: &AgentSpec,
        turns: Option<u64>,
        cost: Option<Money>,
    ) -> (Vec<OsText>, Vec<u8>) {
        let session = match &self.session {
            Some(id) => SessionUse::Continue { id: id.clone() },
            None => SessionUse::New { id: "00000000-0000-4000-8000-000000000001".to_owned() },
        };
        let command = adapter_for(spec.kind, spec.format).invocation(
            spec,
            &session,
            Remaining { turns, cost },
        );
        (command.argv, command.stdin)
    }

    /// Parses the whole output, in chunks as they come from a pipe.
    pub fn parse(&mut self, spec: &AgentSpec, output: &[u8], exit: Exit) -> ReplayedRun {
        let mut parser =
            OutputParser::new(adapter_for(spec.kind, spec.format).reader_after(self.totals));
        let mut events = Vec::new();
        for chunk in output.chunks(64 << 10) {
            events.extend(parser.feed(chunk));
        }
        events.extend(parser.finish());
        self.totals = parser.totals();
        let summary = parser.summary();
        self.session = summary.session.clone().or(self.session.take());
        ReplayedRun {
            events,
            failure: parser.failure(exit),
            usage: summary.usage,
            turns: summary.turns,
            unparsed: summary.unparsed,
            final_text: summary.final_text.clone(),
        }
    }
}
