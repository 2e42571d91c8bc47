//! Texts to begin with, for people to write over.

use belljar_spec::manifest::AgentKind;

use super::answers::{Answers, UntilAnswer};
use super::folder::Template;

/// Stands where the task is to be written.
pub(crate) const NOT_WRITTEN: &str =
    "Say here what is to be done, as to a colleague who has not seen this project:";

/// What an agent is told, until somebody writes it.
pub(super) fn prompt(answers: &Answers) -> String {
    let mut text = format!(
        "# Task\n\n\
         {NOT_WRITTEN}\n\
         what it is for, what is wrong or missing, what a good result looks like.\n\n\
         # Rules\n\n\
         - You work in /workspace, in a sandbox. You may run anything; nobody is asked.\n\
         - What you cannot reach is not allowed. Do not look for a way around it.\n\
         - Check what you did: run the tests, read the output.\n",
    );
    if answers.repeat.is_some() {
        text.push_str(
            "- You are started again and again and remember nothing but the files. Begin by\n  \
               reading PROGRESS.md, if it is there; take one step; write down there what you\n  \
               did and what comes next.\n",
        );
    }
    match answers.repeat.as_ref().and_then(|repeat| repeat.until.as_ref()) {
        Some(UntilAnswer::File(file)) => text.push_str(&format!(
            "- When all of it is done, and only then, make the file {}.\n",
            belljar_spec::text::escape(file.as_bytes())
        )),
        Some(UntilAnswer::Says(phrase)) => text.push_str(&format!(
            "- When all of it is done, and only then, end your last message with: {}\n",
            belljar_spec::text::escape(phrase.as_bytes())
        )),
        None => {}
    }
    text
}

/// What the template `command` runs.
pub(super) const SCRIPT: &str = "\
#!/bin/sh
# Runs inside the sandbox, in /workspace. data/ can be read; what is written here
# shows up in `belljar diff`.
set -eu

ls data | wc -l > result.txt
echo \"files in data: $(cat result.txt)\"
";

pub(super) fn notes(name: &str, template: Template, kind: AgentKind) -> String {
    let what = match template {
        Template::Loop => format!(
            "An agent ({}) that runs again and again, told by PROMPT.md, until the file\n\
             DONE is there or a limit of belljar.toml is reached.",
            kind.name()
        ),
        Template::Command => {
            "A command: work.sh, run once in a sandbox by `belljar run`.".to_owned()
        }
        Template::Fleet => format!(
            "Several workers ({}) on the same task, side by side. Each is a run of its\n\
             own, with its own sandbox and changes; README.md says how to start them.",
            kind.name()
        ),
    };
    let mut commands = match template {
        Template::Loop => vec![
            ("belljar run -d".to_owned(), "start it, and go to bed"),
            (format!("belljar logs -f --agent {name}"), "watch it"),
        ],
        Template::Fleet => Vec::new(),
        Template::Command => vec![("belljar run".to_owned(), "start it")],
    };
    let whose = if template == Template::Fleet { format!("{name}-1") } else { name.to_owned() };
    commands.extend([
        (format!("belljar show {whose}"), "what came of it"),
        (format!("belljar diff {whose}"), "what it changed"),
        (format!("belljar apply {whose}"), "take that over"),
    ]);
    let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let commands: String = commands
        .into_iter()
        .map(|(command, what)| format!("    {command:<width$}  # {what}\n"))
        .collect();
    let told = if template == Template::Command { "" } else { " or PROMPT.md" };
    format!(
        "# {name}\n\n{what}\n\n\
         data/ is read-only inside. After a change of belljar.toml{told}: belljar\n\
         trust.\n\n\
         {commands}\n# Notes\n\n"
    )
}

/// How to run one folder several times.
pub(super) fn fleet(name: &str) -> String {
    format!(
        "# Several workers at once\n\n\
         This version has no command for fleets. One manifest serves any number of runs\n\
         all the same, since the workspace is an overlay: every run sees these files as\n\
         they are, and what it changes stays in that run.\n\n\
         Write PROMPT.md, then:\n\n    \
         belljar trust\n    \
         for i in 1 2 3; do belljar run -d --name {name}-$i; done\n    \
         belljar ps\n    \
         for i in 1 2 3; do belljar wait {name}-$i; done\n\n\
         Then compare, and take over the best:\n\n    \
         for i in 1 2 3; do belljar show {name}-$i; belljar diff {name}-$i; done\n    \
         belljar apply {name}-2\n\n\
         The limits of belljar.toml are each worker's own: three workers may use three\n\
         times as much memory and money.\n"
    )
}
