//! Any program: it is told on its standard input, and what it prints is what it says.

use belljar_spec::{AgentNews, AgentSpec, Role};

use super::{
    Adapter, Argv, Invocation, Preset, Reader, Remaining, SessionTotals, SessionUse, Understood,
};

#[derive(Debug)]
pub(super) struct Command;

impl Adapter for Command {
    fn preset(&self) -> Preset {
        Preset::default()
    }

    fn invocation(&self, spec: &AgentSpec, _: &SessionUse, _: Remaining) -> Invocation {
        let args: Vec<&str> = spec.args.iter().map(String::as_str).collect();
        Argv::of(&spec.program).add(&args).told(&spec.prompt)
    }

    fn reader_after(&self, _: SessionTotals) -> Box<dyn Reader> {
        Box::new(Lines)
    }
}

#[derive(Debug)]
struct Lines;

impl Reader for Lines {
    fn line(&mut self, line: &[u8], news: &mut Vec<AgentNews>) -> Understood {
        if !line.trim_ascii().is_empty() {
            let text = String::from_utf8_lossy(line).into_owned();
            news.push(AgentNews::Message { role: Role::Assistant, text });
        }
        Understood::Yes
    }

    fn needs_result(&self) -> bool {
        false
    }

    /// It does not say where one answer ends.
    fn turns(&self) -> u64 {
        0
    }
}
