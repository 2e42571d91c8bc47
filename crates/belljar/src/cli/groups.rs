//! The commands in groups, as `belljar --help` lists them.

use clap::builder::Styles;
use clap::{Command, CommandFactory, FromArgMatches};

use super::{Arguments, frequent};

/// Commands with a common purpose.
pub(crate) struct Group {
    pub(crate) heading: &'static str,
    pub(crate) commands: &'static [&'static str],
}

/// In the order of `--help` and of `docs/command-line.md`.
pub(crate) const GROUPS: &[Group] = &[
    Group {
        heading: "Run",
        commands: &[
            "run",
            "exec",
            "shell",
            "attach",
            "wait",
            "stop",
            "network",
            "renew",
            "cp",
            "checkpoint",
            "resume",
            "fork",
        ],
    },
    Group { heading: "Look", commands: &["ps", "show", "logs", "events", "why", "port", "verify"] },
    Group { heading: "Review", commands: &["diff", "apply", "discard"] },
    Group { heading: "Clean up", commands: &["rm", "prune", "reconcile"] },
    Group {
        heading: "Set up",
        commands: &[
            "init", "new", "trust", "config", "image", "doctor", "setup", "backends", "prove",
        ],
    },
    Group { heading: "About belljar", commands: &["version", "completions", "man"] },
];

/// The column of the descriptions.
const INDENT: usize = 15;

/// The definition of the command line.
pub(crate) fn command() -> Command {
    let command = Arguments::command();
    let template = template(&command);
    command.help_template(template)
}

/// Parses the arguments of this process.
pub(crate) fn parse() -> Result<Arguments, clap::Error> {
    if let Some(arguments) = frequent::parse(std::env::args_os()) {
        return Ok(arguments);
    }
    if let Some(version) = frequent::version(std::env::args_os()) {
        return Err(version);
    }
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// clap lists subcommands in one block, so the groups are a part of the template.
fn template(command: &Command) -> String {
    let heading = *Styles::styled().get_header();
    let name_style = *Styles::styled().get_literal();
    let mut groups = String::new();
    for group in GROUPS {
        groups.push_str(&format!("{heading}{}:{heading:#}\n", group.heading));
        for name in group.commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let pad = " ".repeat(INDENT.saturating_sub(name.len() + 2));
            let about = crate::report::folded(&about, INDENT);
            groups.push_str(&format!("  {name_style}{name}{name_style:#}{pad}{about}\n"));
        }
        groups.push('\n');
    }
    format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\
         {heading}Options:{heading:#}\n{{options}}{{after-help}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut names: Vec<&str> = shown.map(Command::get_name).collect();
        let groups = GROUPS.iter().flat_map(|group| group.commands);
        let mut grouped: Vec<&str> = groups.copied().collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(names, grouped);
    }
}
