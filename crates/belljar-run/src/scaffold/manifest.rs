//! The text of a manifest, with a word on each key.

use belljar_spec::manifest::{AgentKind, WorkspaceMode};

use super::answers::{AgentAnswer, AnswerError, Answers, RepeatAnswer, UntilAnswer};

/// A manifest that says what was answered.
pub fn manifest_text(answers: &Answers) -> Result<String, AnswerError> {
    answers.check()?;
    let mut text = Text(HEAD.to_owned());
    sandbox(&mut text, answers);
    network(&mut text, answers);
    limits(&mut text, answers);
    match &answers.agent {
        Some(agent) => self::agent(&mut text, agent),
        None => text.0.push_str(NO_AGENT),
    }
    if let Some(repeat) = &answers.repeat {
        self::repeat(&mut text, repeat);
    }
    Ok(text.0)
}

const HEAD: &str = "\
# How belljar runs things in this directory. `belljar config show --origin`
# tells what is in force and why; `belljar config schema` has every key.
#
# It is trusted as it is now. After a change: belljar trust

";

const NO_AGENT: &str = "
# With an agent, `belljar run` needs no command.
# [agent]
# kind = \"claude\"
# prompt_file = \"PROMPT.md\"
";

struct Text(String);

impl Text {
    fn section(&mut self, name: &str) {
        if !self.0.ends_with("\n\n") {
            self.0.push('\n');
        }
        self.0.push_str(&format!("[{name}]\n"));
    }

    fn note(&mut self, words: &str) {
        self.0.push_str(&format!("# {words}\n"));
    }

    fn set(&mut self, key: &str, value: &str) {
        self.0.push_str(&format!("{key} = {value}\n"));
    }

    /// As it would be written.
    fn example(&mut self, key: &str, value: &str) {
        self.0.push_str(&format!("# {key} = {value}\n"));
    }

    /// The answer, or an example of one.
    fn either(&mut self, key: &str, value: Option<String>, example: &str) {
        match value {
            Some(value) => self.set(key, &value),
            None => self.example(key, example),
        }
    }
}

fn sandbox(text: &mut Text, answers: &Answers) {
    text.section("sandbox");
    if let Some(name) = &answers.name {
        text.note("What its runs are called; `belljar logs NAME` and the like take it.");
        text.set("name", &quoted(name));
    }
    text.note("What makes the boundary: jail, docker, podman; auto is the first that works.");
    text.set("backend", &quoted(answers.backend.name()));
    text.note("What to try when that cannot be had, in this order. Nothing else ever is.");
    let fallback: Vec<&str> = answers.fallback.iter().map(|name| name.name()).collect();
    text.either("fallback", (!fallback.is_empty()).then(|| list(&fallback)), "[\"podman\"]");
    text.note(match answers.mode {
        WorkspaceMode::Overlay => {
            "overlay: nothing here changes until `belljar apply`. Others: ro, rw, none."
        }
        WorkspaceMode::Rw => "rw: the run changes the files here. Others: overlay, ro, none.",
        WorkspaceMode::Ro => "ro: the run reads the files here. Others: overlay, rw, none.",
        WorkspaceMode::None => "none: the run sees nothing of here. Others: overlay, ro, rw.",
    });
    text.set("workspace", &format!("{{ mode = {} }}", quoted(answers.mode.name())));
    match &answers.data {
        Some(data) => {
            text.note("What the run reads and cannot change.");
            let (source, target) = (quoted(data), quoted(&format!("/workspace/{data}")));
            let mount = format!("[{{ source = {source}, target = {target}, mode = \"ro\" }}]");
            text.set("mounts", &mount);
        }
        None => {
            text.note("More of this machine, read-only unless mode = \"rw\" is said.");
            text.example("mounts", "[{ source = \"~/data\", target = \"/data\" }]");
        }
    }
}

fn network(text: &mut Text, answers: &Answers) {
    text.section("network");
    text.note(match &answers.agent {
        Some(agent) if agent.kind != AgentKind::Command => {
            "What can be reached besides the agent's own service. Nothing else can."
        }
        _ => "What can be reached. Nothing else can.",
    });
    let hosts = (!answers.allow_hosts.is_empty()).then(|| list(&answers.allow_hosts));
    text.either("allow", hosts, "[\"pypi.org\", \"files.pythonhosted.org\"]");
}

fn limits(text: &mut Text, answers: &Answers) {
    text.section("limits");
    text.note("Of everything together. Without it: half of the machine's memory.");
    let memory = answers.memory.map(|size| quoted(&size.to_string()));
    text.either("memory", memory, "\"4g\"");
    text.note("After this it is ended. Without it: never.");
    let time = answers.time.map(|span| quoted(&span.to_string()));
    text.either("time", time, "\"8h\"");
}

fn agent(text: &mut Text, agent: &AgentAnswer) {
    text.section("agent");
    text.note("What `belljar run` without a command runs: claude, codex, gemini, command.");
    text.set("kind", &quoted(agent.kind.name()));
    match agent.kind {
        AgentKind::Command => {
            text.note("Run inside; no shell reads it. It is told its prompt on standard input.");
            text.set("command", &list(&agent.command));
        }
        AgentKind::Claude | AgentKind::Codex | AgentKind::Gemini => {
            text.note(
                "bypass: it asks nobody, since the boundary is outside it. Or accept-edits, ask.",
            );
            text.set("permissions", "\"bypass\"");
            text.example("model", "\"…\"");
        }
    }
    text.note("What it is told. Trusted with this file: after a change, belljar trust.");
    text.either("prompt_file", agent.prompt_file.as_deref().map(quoted), "\"PROMPT.md\"");
}

fn repeat(text: &mut Text, repeat: &RepeatAnswer) {
    text.section("loop");
    text.note("The agent runs again and again, until one of these holds.");
    let until = repeat.until.as_ref().map(|until| match until {
        UntilAnswer::File(file) => format!("{{ file = {} }}", quoted(file)),
        UntilAnswer::Says(phrase) => format!("{{ says = {} }}", quoted(phrase)),
    });
    text.note("A file is there; or { says = \"…\" }, { command = [\"make\", \"test\"] } (inside).");
    text.either("until", until, "{ file = \"DONE\" }");
    let most = repeat.max_iterations.map(|most| most.to_string());
    text.either("max_iterations", most, "20");
    let time = repeat.max_time.map(|span| quoted(&span.to_string()));
    text.either("max_time", time, "\"8h\"");
    let cost = repeat.max_cost.map(|cost| format!("{:?}", cost.0));
    text.either("max_cost_usd", cost, "25.0");
    text.note("In a row: iterations that change nothing, and failures.");
    text.set("max_unchanged", "3");
    text.set("max_failures", "5");
    text.note("fresh: it remembers what is in the files. continue: its own session goes on.");
    text.set("session", "\"fresh\"");
}

fn list<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word.as_ref())).collect();
    format!("[{}]", words.join(", "))
}

/// A string of TOML: whatever is in it, it ends where it should.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
