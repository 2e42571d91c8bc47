//! `belljar new`: creates a numbered folder for one task.

use belljar::scaffold::{Template, new_folder};

use super::{CommandResult, environment, exit_code, open_home};
use crate::cli::init::NewArgs;
use crate::report::{self, BOLD};

pub(crate) fn run(args: &NewArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &NewArgs) -> CommandResult {
    let parent = match &args.parent {
        Some(parent) => parent.clone(),
        None => std::env::current_dir()?,
    };
    let home = open_home()?;
    let template = args.template.into();
    let folder = new_folder(&parent, &args.name, template, args.agent, &environment(), &home)?;
    if args.json {
        report::json(&folder)?;
        return Ok(0);
    }
    report::out(&format!("{}\n", folder.path));
    let name = &folder.name;
    report::eprintln(&match template {
        Template::Loop => format!(
            "{BOLD}next:{BOLD:#} write {name}/PROMPT.md, then: cd {name} && belljar trust && belljar run"
        ),
        Template::Command => {
            format!("{BOLD}next:{BOLD:#} write {name}/work.sh, then: cd {name} && belljar run")
        }
        Template::Fleet => {
            format!(
                "{BOLD}next:{BOLD:#} write {name}/PROMPT.md; {name}/README.md says how to start"
            )
        }
    });
    Ok(0)
}
