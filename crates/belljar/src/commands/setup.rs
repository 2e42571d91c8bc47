//! `belljar setup`: prints what an ordinary user lacks on this machine, and does it as root.

use std::io::IsTerminal;
use std::path::PathBuf;

use belljar::setup::{
    Account, AccountError, Journal, Machine, SECCOMP_PROFILE, StepReport, StepState, Undo,
    UndoReport, apparmor_profile,
};
use belljar::spec::text::escape;
use serde::Serialize;

use super::{CommandResult, EXIT_INCOMPLETE, exit_code, prompt};
use crate::cli::{PrintedFile, SetupArgs};
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN, folded};

#[derive(Debug, thiserror::Error)]
enum SetupCommandError {
    #[error("whose account is to be prepared? Name it: belljar setup --user NAME")]
    NoUser,
    #[error("only root can undo what setup made: sudo {0} setup --undo")]
    NotRoot(String),
    #[error("a profile cannot name the path {0}; install belljar as /usr/local/bin/belljar")]
    Path(String),
}

/// What `--json` prints.
#[derive(Serialize)]
struct SetupResult<'a> {
    user: &'a str,
    uid: u32,
    /// Whether something was changed.
    changed: bool,
    steps: &'a [StepReport],
}

pub(crate) fn run(args: &SetupArgs) -> i32 {
    exit_code(match (args.print, args.undo) {
        (Some(file), _) => print(file),
        (None, true) => undo(args),
        (None, false) => set_up(args),
    })
}

fn print(file: PrintedFile) -> CommandResult {
    let text = match file {
        PrintedFile::SeccompProfile => SECCOMP_PROFILE.to_owned(),
        PrintedFile::ApparmorProfile => {
            let executable = executable()?;
            let path = || SetupCommandError::Path(executable.display().to_string());
            apparmor_profile(&executable).ok_or_else(path)?
        }
    };
    report::out(&text);
    Ok(0)
}

fn set_up(args: &SetupArgs) -> CommandResult {
    let mut machine = Machine::here(account(args)?, executable()?)?;
    let found = machine.examine();
    let is_needed = found.iter().any(|step| step.state == StepState::Needed);
    let may_ask = !args.yes && !args.json && std::io::stdin().is_terminal();
    if !args.json {
        report::out(&to_text(&machine, &found));
    }
    let confirmed = is_root()
        && is_needed
        && (args.yes || (may_ask && prompt::confirm("Make these changes?")?));
    if !confirmed {
        if args.json {
            print_json(&machine, &found, false)?;
        } else {
            report::out(&next(&machine, &found));
        }
        return Ok(code(&found));
    }
    let made = machine.set_up()?;
    if args.json {
        print_json(&machine, &made, true)?;
    } else {
        report::out(&made.iter().filter_map(outcome).collect::<String>());
    }
    Ok(code(&made))
}

fn undo(args: &SetupArgs) -> CommandResult {
    if !is_root() {
        let executable = executable()?.display().to_string();
        return Err(SetupCommandError::NotRoot(executable).into());
    }
    let user = args.user.as_deref().map(Account::find).transpose()?;
    if Journal::here()?.is_empty() {
        if args.json {
            report::json(&UndoReport::default())?;
        } else {
            report::out("nothing to do: setup made nothing on this machine\n");
        }
        return Ok(0);
    }
    if !args.yes && !prompt::confirm("Remove what setup made?")? {
        return Ok(EXIT_INCOMPLETE);
    }
    let done = Journal::undo(match &user {
        Some(user) => Undo::OnlyOf(&user.name),
        None => Undo::All,
    })?;
    if args.json {
        report::json(&done)?;
    } else {
        let removed = done.removed.iter().map(|what| format!("{GOOD}✓{GOOD:#} undone: {what}\n"));
        let left = done.left.iter().map(|left| {
            let text = folded(&format!("left: {}: {}", left.what, left.why), 2);
            format!("{WARN}⚠{WARN:#} {text}\n")
        });
        let kept = done.kept.iter().map(|what| {
            let text =
                format!("kept: {what}: it holds for every user; without --user it is undone");
            format!("{DIM}·{DIM:#} {}\n", folded(&text, 2))
        });
        report::out(&removed.chain(kept).chain(left).collect::<String>());
    }
    Ok(if done.left.is_empty() { 0 } else { EXIT_INCOMPLETE })
}

/// The user named, or the caller; for root, who called `sudo` or `doas`.
fn account(args: &SetupArgs) -> Result<Account, Box<dyn std::error::Error>> {
    if let Some(name) = &args.user {
        return Ok(Account::find(name)?);
    }
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Ok(Account::find(&uid.as_raw().to_string())?);
    }
    let caller = ["SUDO_USER", "DOAS_USER"].iter().find_map(|name| std::env::var(name).ok());
    match caller.as_deref().map(Account::find) {
        Some(Err(AccountError::Root(_))) | None => Err(SetupCommandError::NoUser.into()),
        Some(found) => Ok(found?),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As its profile has to name it: without links.
fn executable() -> std::io::Result<PathBuf> {
    std::env::current_exe()?.canonicalize()
}

fn code(steps: &[StepReport]) -> i32 {
    let is_open = |step: &StepReport| {
        matches!(step.state, StepState::Needed | StepState::Blocked | StepState::Failed)
    };
    if steps.iter().any(is_open) { EXIT_INCOMPLETE } else { 0 }
}

fn print_json(machine: &Machine, steps: &[StepReport], changed: bool) -> std::io::Result<()> {
    let account = machine.account();
    report::json(&SetupResult { user: &account.name, uid: account.uid, changed, steps })
}

fn to_text(machine: &Machine, steps: &[StepReport]) -> String {
    let mut text =
        format!("{BOLD}For the user {}:{BOLD:#}\n", escape(machine.account().name.as_bytes()));
    for step in steps {
        let (mark, style) = match step.state {
            StepState::Ready | StepState::Made => ("✓", GOOD),
            StepState::NotNeeded => ("·", DIM),
            StepState::Needed | StepState::Blocked => ("⚠", WARN),
            StepState::Failed => ("✗", BAD),
        };
        let what = match step.state {
            StepState::NotNeeded => format!("not needed: {}", step.what),
            _ => step.what.clone(),
        };
        text.push_str(&format!("{style}{mark}{style:#} {:<17} {}\n", step.name, folded(&what, 20)));
        if step.state == StepState::Needed {
            text.push_str(&format!("{:20}{DIM}{}{DIM:#}\n", "", folded(step.why, 20)));
            // Commands to paste are not wrapped.
            for command in &step.commands {
                text.push_str(&format!("  {command}\n"));
            }
        }
        if let Some(note) = &step.note {
            text.push_str(&format!("{:20}{}\n", "", folded(&format!("note: {note}"), 20)));
        }
    }
    text
}

/// The last line: what to do next.
fn next(machine: &Machine, steps: &[StepReport]) -> String {
    if steps.iter().any(|step| step.state == StepState::Needed) {
        let executable = executable().unwrap_or_else(|_| "belljar".into());
        let user = &machine.account().name;
        return format!(
            "Root does all of it with:\n  sudo {} setup --user {user} --yes\n",
            executable.display()
        );
    }
    match code(steps) {
        0 => "nothing to do\n".to_owned(),
        _ => "nothing that setup can do\n".to_owned(),
    }
}

/// What became of one step; `None` where nothing was to be done.
fn outcome(step: &StepReport) -> Option<String> {
    let (mark, style) = match step.state {
        StepState::Made => ("✓", GOOD),
        StepState::Failed => ("✗", BAD),
        StepState::Ready | StepState::NotNeeded | StepState::Needed | StepState::Blocked => {
            return None;
        }
    };
    let text = folded(&format!("{}: {}", step.name, step.what), 2);
    Some(format!("{style}{mark}{style:#} {text}\n"))
}
