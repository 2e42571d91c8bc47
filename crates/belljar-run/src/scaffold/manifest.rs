//! Generates the text of a manifest, with a comment on each key.

use belljar_spec::manifest::WorkspaceMode;

use super::answers::{AgentAnswer, AnswerError, Answers, RepeatAnswer, UntilAnswer};

/// The manifest for these answers.
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
# How belljar runs commands in this directory. `belljar config show --origin`
# shows the settings in effect and their origin; `belljar config schema` lists
# every key.
#
# Trusted as it is now. After a change, run: belljar trust

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

    fn comment(&mut self, text: &str) {
        self.0.push_str(&format!("# {text}\n"));
    }

    fn set(&mut self, key: &str, value: &str) {
        self.0.push_str(&format!("{key} = {value}\n"));
    }

    /// Commented out.
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
        text.comment("The name of its runs, for `belljar logs NAME` and other commands.");
        text.set("name", &toml_string(name));
    }
    text.comment("The backend: jail, docker or podman; auto takes the first that works.");
    text.set("backend", &toml_string(answers.backend.name()));
    text.comment("Tried in this order if that one is not available. No other ever is.");
    let fallback: Vec<&str> = answers.fallback.iter().map(|name| name.name()).collect();
    text.either("fallback", (!fallback.is_empty()).then(|| list(&fallback)), "[\"podman\"]");
    text.comment(match answers.mode {
        WorkspaceMode::Overlay => {
            "overlay: nothing here changes until `belljar apply`. Others: ro, rw, none."
        }
        WorkspaceMode::Rw => "rw: the run changes the files here. Others: overlay, ro, none.",
        WorkspaceMode::Ro => "ro: the run reads the files here. Others: overlay, rw, none.",
        WorkspaceMode::None => "none: the run sees no files from here. Others: overlay, ro, rw.",
    });
    text.set("workspace", &format!("{{ mode = {} }}", toml_string(answers.mode.name())));
    match &answers.data {
        Some(data) => {
            text.comment("Read-only in the run.");
            let (source, target) = (toml_string(data), toml_string(&format!("/workspace/{data}")));
            let mount = format!("[{{ source = {source}, target = {target}, mode = \"ro\" }}]");
            text.set("mounts", &mount);
        }
        None => {
            text.comment("More directories of this machine, read-only unless mode = \"rw\".");
            text.example("mounts", "[{ source = \"~/data\", target = \"/data\" }]");
        }
    }
}

fn network(text: &mut Text, answers: &Answers) {
    text.section("network");
    text.comment(match &answers.agent {
        Some(agent) if agent.kind.has_preset() => {
            "Hosts that the run can reach, besides the agent's service. No others."
        }
        _ => "Hosts that the run can reach. No others.",
    });
    let hosts = (!answers.allow_hosts.is_empty()).then(|| list(&answers.allow_hosts));
    text.either("allow", hosts, "[\"pypi.org\", \"files.pythonhosted.org\"]");
}

fn limits(text: &mut Text, answers: &Answers) {
    text.section("limits");
    text.comment("For the whole sandbox. Default: half of the machine's memory.");
    let memory = answers.memory.map(|size| toml_string(&size.to_string()));
    text.either("memory", memory, "\"4g\"");
    text.comment("The run is stopped after this time. Default: no limit.");
    let time = answers.time.map(|span| toml_string(&span.to_string()));
    text.either("time", time, "\"8h\"");
}

fn agent(text: &mut Text, agent: &AgentAnswer) {
    text.section("agent");
    text.comment("What `belljar run` without a command runs: claude, codex, gemini, command.");
    text.set("kind", &toml_string(agent.kind.name()));
    match agent.kind.has_preset() {
        false => {
            text.comment(
                "Runs in the sandbox, without a shell. Gets the prompt on standard input.",
            );
            text.set("command", &list(&agent.command));
        }
        true => {
            text.comment("bypass: no prompts; the sandbox is the boundary. Or accept-edits, ask.");
            text.set("permissions", "\"bypass\"");
            text.example("model", "\"…\"");
            text.comment("login: your subscription's login, kept outside. Default: an API key.");
            text.example("auth", "\"login\"");
        }
    }
    text.comment("The prompt. Trusted with this file: after a change, run belljar trust.");
    text.either("prompt_file", agent.prompt_file.as_deref().map(toml_string), "\"PROMPT.md\"");
}

fn repeat(text: &mut Text, repeat: &RepeatAnswer) {
    text.section("loop");
    text.comment("The agent runs in a loop until one of these is true.");
    let until = repeat.until.as_ref().map(|until| match until {
        UntilAnswer::File(file) => format!("{{ file = {} }}", toml_string(file)),
        UntilAnswer::Says(phrase) => format!("{{ says = {} }}", toml_string(phrase)),
    });
    text.comment(
        "A file; or { says = \"…\" }, or { command = [\"make\", \"test\"] } in the sandbox.",
    );
    text.either("until", until, "{ file = \"DONE\" }");
    let most = repeat.max_iterations.map(|most| most.to_string());
    text.either("max_iterations", most, "20");
    let time = repeat.max_time.map(|span| toml_string(&span.to_string()));
    text.either("max_time", time, "\"8h\"");
    let cost = repeat.max_cost.map(|cost| format!("{:?}", cost.0));
    text.either("max_cost_usd", cost, "25.0");
    text.comment("In a row: iterations that change nothing, and failures.");
    text.set("max_unchanged", "3");
    text.set("max_failures", "5");
    text.comment("fresh: a new session each time. continue: the same session goes on.");
    text.set("session", "\"fresh\"");
}

fn list<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(|item| toml_string(item.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

/// A TOML string, escaped.
fn toml_string(text: &str) -> String {
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
