//! Templates of the prompt, the notes and the script that `init` and `new` write.

use belljar_spec::manifest::AgentKind;

use super::answers::{Answers, UntilAnswer};
use super::folder::Template;

/// Marks a prompt that still has to be written.
const TASK_PLACEHOLDER: &str =
    "Describe the task here, as for a colleague who has not seen this project:";

/// Its sentences of this and of earlier versions.
pub(crate) const TASK_PLACEHOLDERS: [&str; 2] = [
    TASK_PLACEHOLDER,
    "Say here what is to be done, as to a colleague who has not seen this project:",
];

/// The template of a prompt.
pub(super) fn prompt(answers: &Answers) -> String {
    let mut text = format!(
        "# Task\n\n\
         {TASK_PLACEHOLDER}\n\
         what it is for, what is wrong or missing, what a good result looks like.\n\n\
         # Rules\n\n\
         - You work in /workspace, in a sandbox. You may run anything without asking.\n\
         - What you cannot reach is not allowed. Do not try to get around that.\n\
         - Check what you did: run the tests, read the output.\n",
    );
    if answers.repeat.is_some() {
        text.push_str(
            "- You run in a loop and remember nothing but the files. Begin by\n  \
               reading PROGRESS.md, if it exists; take one step; write down there what you\n  \
               did and what comes next.\n",
        );
    }
    match answers.repeat.as_ref().and_then(|repeat| repeat.until.as_ref()) {
        Some(UntilAnswer::File(file)) => text.push_str(&format!(
            "- When everything is done, and only then, create the file {}.\n",
            belljar_spec::text::escape(file.as_bytes())
        )),
        Some(UntilAnswer::Says(phrase)) => text.push_str(&format!(
            "- When everything is done, and only then, end your last message with: {}\n",
            belljar_spec::text::escape(phrase.as_bytes())
        )),
        None => {}
    }
    text
}

/// What the template `command` runs.
pub(super) const SCRIPT: &str = "\
#!/bin/sh
# Runs inside the sandbox, in /workspace. data/ is read-only; other changes show
# up in `belljar diff`.
set -eu

ls data | wc -l > result.txt
echo \"files in data: $(cat result.txt)\"
";

pub(super) fn notes(name: &str, template: Template, kind: AgentKind) -> String {
    let what = match template {
        Template::Loop => format!(
            "An agent ({}) that works on PROMPT.md in a loop, until the file DONE\n\
             exists or a limit of belljar.toml is reached.",
            kind.name()
        ),
        Template::Command => {
            "A command: work.sh, run once in a sandbox by `belljar run`.".to_owned()
        }
        Template::Fleet => format!(
            "Several workers ({}) on the same task, in parallel. Each is a separate\n\
             run with its own sandbox and changes; README.md shows how to start them.",
            kind.name()
        ),
    };
    let mut commands = match template {
        Template::Loop => vec![
            ("belljar run -d".to_owned(), "start it in the background"),
            (format!("belljar logs -f --agent {name}"), "watch it"),
        ],
        Template::Fleet => Vec::new(),
        Template::Command => vec![("belljar run".to_owned(), "start it")],
    };
    let run = if template == Template::Fleet { format!("{name}-1") } else { name.to_owned() };
    commands.extend([
        (format!("belljar show {run}"), "show the result"),
        (format!("belljar diff {run}"), "show its changes"),
        (format!("belljar apply {run}"), "apply its changes"),
    ]);
    let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let commands: String = commands
        .into_iter()
        .map(|(command, what)| format!("    {command:<width$}  # {what}\n"))
        .collect();
    let prompt = if template == Template::Command { "" } else { " or PROMPT.md" };
    format!(
        "# {name}\n\n{what}\n\n\
         data/ is read-only in the sandbox. After a change of belljar.toml{prompt},\n\
         run: belljar trust\n\n\
         {commands}\n# Notes\n\n"
    )
}

/// The README of a fleet folder.
pub(super) fn fleet(name: &str) -> String {
    format!(
        "# Several workers at once\n\n\
         This version has no command for fleets. One manifest still serves any number of\n\
         runs, because the workspace is an overlay: every run sees these files as they\n\
         are, and its changes stay in that run.\n\n\
         Write PROMPT.md, then:\n\n    \
         belljar trust\n    \
         for i in 1 2 3; do belljar run -d --name {name}-$i; done\n    \
         belljar ps\n    \
         for i in 1 2 3; do belljar wait {name}-$i; done\n\n\
         Then compare, and apply the best:\n\n    \
         for i in 1 2 3; do belljar show {name}-$i; belljar diff {name}-$i; done\n    \
         belljar apply {name}-2\n\n\
         The limits of belljar.toml apply to each worker: three workers may use three\n\
         times as much memory and money.\n"
    )
}
