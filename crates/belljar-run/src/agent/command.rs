//! The adapter for any other program: it gets the prompt on standard input, and each output line is a message, unless
//! it prints the format of a known agent.

use belljar_spec::manifest::AgentKind;
use belljar_spec::{AgentEvent, AgentSpec, Role};

use super::{
    Adapter, AgentCommand, Argv, Preset, Reader, Remaining, SessionTotals, SessionUse, Understood,
    UsageReporting, adapter,
};

#[derive(Debug)]
pub(super) struct PlainCommand {
    /// The agent whose format it prints.
    pub(super) format: Option<AgentKind>,
}

impl Adapter for PlainCommand {
    /// It needs nothing from the host. What it reports depends on what it prints.
    fn preset(&self) -> Preset {
        let usage_reporting = match self.format {
            Some(kind) => adapter(kind).preset().usage_reporting,
            None => UsageReporting::None,
        };
        Preset { usage_reporting, ..Preset::default() }
    }

    fn invocation(&self, spec: &AgentSpec, _: &SessionUse, _: Remaining) -> AgentCommand {
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        Argv::of(&spec.program).add(&args).with_prompt(&spec.prompt)
    }

    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader> {
        match self.format {
            Some(kind) => adapter(kind).reader_after(before),
            None => Box::new(PlainLines),
        }
    }
}

#[derive(Debug)]
struct PlainLines;

impl Reader for PlainLines {
    fn line(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) -> Understood {
        if !line.trim_ascii().is_empty() {
            let text = String::from_utf8_lossy(line).into_owned();
            events.push(AgentEvent::Message { role: Role::Assistant, text });
        }
        Understood::Yes
    }

    fn needs_result(&self) -> bool {
        false
    }

    /// Plain output does not show where one response ends.
    fn turns(&self) -> u64 {
        0
    }
}
