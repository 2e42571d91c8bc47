//! `belljar completions`: prints a completion script, generated from the command line's definition.
//!
//! The script is static. Run ids and names are not completed: clap's dynamic completion is marked unstable.

use clap_complete::generate;

use crate::cli::{CompletionsArgs, Shell, command};
use crate::report;

pub(crate) fn run(args: &CompletionsArgs) -> i32 {
    report::out(&script(args.shell));
    0
}

fn script(shell: Shell) -> String {
    let mut definition = command();
    let mut bytes = Vec::new();
    match shell {
        Shell::Bash => generate(clap_complete::Shell::Bash, &mut definition, "belljar", &mut bytes),
        Shell::Zsh => generate(clap_complete::Shell::Zsh, &mut definition, "belljar", &mut bytes),
        Shell::Fish => generate(clap_complete::Shell::Fish, &mut definition, "belljar", &mut bytes),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_is_completed_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            let definition = command();
            let visible = definition.get_subcommands().filter(|command| !command.is_hide_set());
            let names: Vec<&str> = visible.map(clap::Command::get_name).collect();
            assert!(names.len() >= 33, "{names:?}");
            for name in names {
                let row = match shell {
                    Shell::Bash => format!("belljar__subcmd__{name})"),
                    Shell::Zsh => format!("_belljar__subcmd__{name}_commands()"),
                    Shell::Fish => format!("-a \"{name}\""),
                };
                assert!(script.contains(&row), "{shell:?} does not complete {name}: no {row}");
            }
            // Processes that belljar starts by itself are no commands.
            let mut words = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let hidden = ["__init", "__supervise", "__egress", "__rules", "__probe", "__nothing"];
            let found = words.find(|word| hidden.contains(word));
            assert!(found.is_none(), "{shell:?}: {found:?}");
        }
    }
}
