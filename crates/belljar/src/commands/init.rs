//! `belljar init`: asks for a run's settings, writes the manifest, and shows the resulting posture.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::Path;

use belljar::config::{self, Invocation};
use belljar::doctor::{BackendReport, examine_all};
use belljar::home::Home;
use belljar::run::{DryRun, Fetch, Images, prepare};
use belljar::scaffold::{
    self, AgentAnswer, Answers, Existing, InitReport, RepeatAnswer, UntilAnswer,
};
use belljar::spec::manifest::{AgentKind, Usd, WorkspaceMode};
use belljar::spec::text::escape;
use belljar::spec::wire::control::Keep;
use belljar::spec::{BackendChoice, BackendName, MainCommand};
use serde_json::json;

use super::prompt::{AskError, answer};
use super::{CommandResult, environment, exit_code, open_home, show_plan};
use crate::cli::init::{self as cli, AgentFlag, InitArgs};
use crate::report::{self, BOLD, DIM, GOOD, WARN};

const PROMPT: &str = "PROMPT.md";
const DONE_FILE: &str = "DONE";
const DONE_PHRASE: &str = "ALL DONE";
const ITERATIONS: u32 = 20;

#[derive(Debug, thiserror::Error)]
#[error("not a terminal, so nothing can be asked; use --yes for the defaults")]
struct NoTerminal;

#[derive(Debug, thiserror::Error)]
#[error("nothing was written: the input ended before the last question")]
struct NoAnswer;

pub(crate) fn run(args: &InitArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &InitArgs) -> CommandResult {
    let directory = std::env::current_dir()?;
    let existing = if args.force { Existing::Rename } else { Existing::Refuse };
    let manifest = directory.join(belljar::spec::manifest::FILE_NAME);
    if existing == Existing::Refuse && !args.dry_run && manifest.symlink_metadata().is_ok() {
        // Checked before the questions.
        return Err(scaffold::ScaffoldError::Exists(manifest).into());
    }
    let answers = match args.yes {
        true => without_asking(args),
        false if !io::stdin().is_terminal() => return Err(NoTerminal.into()),
        false => asked(args)?,
    };
    if args.dry_run {
        report::out(&scaffold::manifest_text(&answers)?);
        return Ok(0);
    }
    let home = open_home()?;
    let begun = scaffold::init(&directory, &answers, existing, &environment(), &home)?;
    let planned = planned(&directory, &answers, &home);
    if args.json {
        return as_json(&begun, planned);
    }
    print_next_steps(&begun, &answers, planned);
    Ok(0)
}

fn as_json(begun: &InitReport, planned: Result<DryRun, Box<dyn Error>>) -> CommandResult {
    let mut data = serde_json::to_value(begun)?;
    data["trusted"] = json!(true);
    match planned {
        Ok(dry_run) => {
            let missing: Vec<&str> = dry_run.missing.iter().map(|one| one.clause.name()).collect();
            data["backend"] = json!(dry_run.plan.backend);
            data["posture"] = json!(dry_run.plan.posture);
            data["missing"] = json!(missing);
        }
        Err(error) => data["why_no_posture"] = json!(error.to_string()),
    }
    report::json(&data)?;
    Ok(0)
}

/// The answers from flags, and defaults for the rest.
fn without_asking(args: &InitArgs) -> Answers {
    let agent = match args.agent {
        Some(AgentFlag::Kind(kind)) => Some(kind),
        Some(AgentFlag::None) => None,
        // A command line implies the agent "command".
        None => (!args.command.is_empty()).then_some(AgentKind::Command),
    };
    Answers {
        backend: args.backend.unwrap_or_default(),
        fallback: args.fallback.clone(),
        mode: args.workspace_mode.unwrap_or(WorkspaceMode::Overlay),
        allow_hosts: args.allow_hosts.clone(),
        memory: args.memory,
        time: args.time,
        agent: agent.map(|kind| agent_answer(args, kind)),
        repeat: is_loop(args).then(|| repeat_answer(args)),
        ..Answers::default()
    }
}

fn is_loop(args: &InitArgs) -> bool {
    args.repeat
        || args.max_iterations.is_some()
        || args.until_file.is_some()
        || args.until_says.is_some()
        || args.max_cost_usd.is_some()
}

fn agent_answer(args: &InitArgs, kind: AgentKind) -> AgentAnswer {
    // A command needs no prompt.
    let default = (kind != AgentKind::Command).then(|| PROMPT.to_owned());
    let prompt_file = args.prompt_file.clone().or(default);
    AgentAnswer { kind, command: args.command.clone(), prompt_file }
}

fn repeat_answer(args: &InitArgs) -> RepeatAnswer {
    let until = match (&args.until_file, &args.until_says) {
        (Some(file), _) => UntilAnswer::File(file.clone()),
        (None, Some(phrase)) => UntilAnswer::Says(phrase.clone()),
        // A file needs a workspace.
        (None, None) if args.workspace_mode == Some(WorkspaceMode::None) => {
            UntilAnswer::Says(DONE_PHRASE.to_owned())
        }
        (None, None) => UntilAnswer::File(DONE_FILE.to_owned()),
    };
    RepeatAnswer {
        max_iterations: Some(args.max_iterations.unwrap_or(ITERATIONS)),
        until: Some(until),
        max_cost: args.max_cost_usd.map(Usd),
        max_time: None,
    }
}

/// The answers from flags and from questions.
fn asked(args: &InitArgs) -> Result<Answers, Box<dyn Error>> {
    let mut answers = without_asking(args);
    if args.backend.is_none() {
        report::eprintln(&format!("{DIM}testing the backends of this machine …{DIM:#}"));
        let found = examine_all(&std::env::current_exe()?);
        answers.backend = ask_backend(&found)?;
        if args.fallback.is_empty() && answers.backend != BackendChoice::Auto {
            answers.fallback = ask_fallback(&found, answers.backend)?;
        }
    }
    if args.workspace_mode.is_none() {
        report::eprintln(
            "this directory: overlay (nothing changes until you apply it), ro, rw, none",
        );
        let question = "mode?";
        answers.mode = ask(question, WorkspaceMode::Overlay.name(), cli::mode)?;
    }
    if args.allow_hosts.is_empty() {
        answers.allow_hosts = ask("hosts to allow, separated by blanks?", "none", |text| {
            Ok(match text {
                "none" => Vec::new(),
                _ => text
                    .split([' ', ','])
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned)
                    .collect(),
            })
        })?;
    }
    if args.memory.is_none() {
        let question = "memory limit, such as 4g (half: half of this machine's)?";
        answers.memory = ask(question, "half", |text| optional(text, "half"))?;
    }
    if args.time.is_none() {
        let question = "time limit of a run, such as 8h?";
        answers.time = ask(question, "none", |text| optional(text, "none"))?;
    }
    ask_agent(args, &mut answers)?;
    Ok(answers)
}

fn ask_agent(args: &InitArgs, answers: &mut Answers) -> Result<(), Box<dyn Error>> {
    if args.agent.is_none() && args.command.is_empty() {
        let question = "agent: none, claude, codex, gemini, command?";
        answers.agent = match ask(question, "none", cli::agent)? {
            AgentFlag::None => None,
            AgentFlag::Kind(kind) => Some(agent_answer(args, kind)),
        };
    }
    let Some(agent) = &mut answers.agent else { return Ok(()) };
    if agent.kind == AgentKind::Command && agent.command.is_empty() {
        // Split at blanks; quotes are not supported.
        agent.command = ask("program and arguments?", "", |text| {
            let argv: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            if argv.is_empty() { Err("enter a program".to_owned()) } else { Ok(argv) }
        })?;
    }
    if args.prompt_file.is_none() {
        let default = if agent.kind == AgentKind::Command { "none" } else { PROMPT };
        let may_be_none = agent.kind == AgentKind::Command;
        agent.prompt_file = ask("prompt file?", default, |text| match text {
            "none" if may_be_none => Ok(None),
            _ => Ok(Some(text.to_owned())),
        })?;
    }
    if !is_loop(args) && ask("run it in a loop: yes, no?", "no", yes_or_no)? {
        let mut repeat = repeat_answer(args);
        repeat.max_iterations = Some(ask("maximum number of iterations?", "20", number)?);
        repeat.until = Some(match answers.mode {
            WorkspaceMode::None => {
                let question = "stop when a message contains which phrase?";
                UntilAnswer::Says(ask(question, DONE_PHRASE, |text| Ok(text.to_owned()))?)
            }
            _ => {
                let question = "stop when which file exists?";
                UntilAnswer::File(ask(question, DONE_FILE, |text| Ok(text.to_owned()))?)
            }
        });
        let cost = ask("cost limit in US dollars?", "none", |text| match text {
            "none" => Ok(None),
            _ => cli::dollars(text).map(Some),
        })?;
        repeat.max_cost = cost.map(Usd);
        answers.repeat = Some(repeat);
    }
    Ok(())
}

/// Lists the backends with the result of their tests, and asks for one.
fn ask_backend(found: &[BackendReport]) -> Result<BackendChoice, Box<dyn Error>> {
    for row in found.iter().filter(|row| row.backend != BackendName::Host) {
        let (mark, style) = if row.usable { ("✓", GOOD) } else { ("✗", WARN) };
        let why = row.why.as_deref().map(|why| format!(": {}", escape(why.as_bytes())));
        let text = format!("{}{}", row.backend, why.unwrap_or_default());
        report::eprintln(&format!("  {style}{mark}{style:#} {}", report::folded(&text, 4)));
    }
    let usable = found.iter().filter(|row| row.usable && row.backend != BackendName::Host);
    let names: Vec<&str> = usable.map(|row| row.backend.name()).collect();
    let names = std::iter::once("auto").chain(names).collect::<Vec<_>>().join(", ");
    ask(&format!("backend: {names}?"), "auto", |text| {
        let choice = cli::backend(text)?;
        let unusable =
            |row: &&BackendReport| BackendChoice::from(row.backend) == choice && !row.usable;
        match found.iter().find(unusable) {
            Some(_) if choice != BackendChoice::Auto => {
                Err(format!("{text} is not available here; see belljar doctor"))
            }
            _ => Ok(choice),
        }
    })
}

fn ask_fallback(
    found: &[BackendReport],
    chosen: BackendChoice,
) -> Result<Vec<BackendName>, Box<dyn Error>> {
    let others: Vec<&str> = found
        .iter()
        .filter(|row| row.usable && BackendChoice::from(row.backend) != chosen)
        .filter(|row| row.backend != BackendName::Host)
        .map(|row| row.backend.name())
        .collect();
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let question = format!("fallback backends ({}), in order?", others.join(", "));
    ask(&question, "none", |text| match text {
        "none" => Ok(Vec::new()),
        _ => {
            let names = text.split([' ', ',']).filter(|name| !name.is_empty());
            names.map(cli::backend_name).collect()
        }
    })
}

/// Repeats a question until the answer is valid. An empty line means the default.
fn ask<T>(
    question: &str,
    default: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Box<dyn Error>> {
    let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    loop {
        let line = answer(&format!("{question}{shown}"))
            .map_err(|error: AskError| Box::<dyn Error>::from(error))?
            .ok_or(NoAnswer)?;
        let line = if line.is_empty() { default } else { line.as_str() };
        match parse(line) {
            Ok(value) => return Ok(value),
            Err(why) => report::eprintln(&format!("{WARN}{}{WARN:#}", escape(why.as_bytes()))),
        }
    }
}

fn optional<T: std::str::FromStr<Err: ToString>>(
    text: &str,
    none: &str,
) -> Result<Option<T>, String> {
    if text == none {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: T::Err| error.to_string())
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err("enter yes or no".to_owned()),
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "enter a number".to_owned())
}

/// The plan, as `run --dry-run` makes it.
fn planned(directory: &Path, answers: &Answers, home: &Home) -> Result<DryRun, Box<dyn Error>> {
    // The posture does not depend on the command.
    let argv = || MainCommand::Argv(vec!["true".into()]);
    let command = if answers.agent.is_some() { MainCommand::Agent } else { argv() };
    let keep = if answers.agent.is_some() { Keep::UntilStopped } else { Keep::WhileCommandRuns };
    let invocation = Invocation::new(directory.to_owned(), environment(), command);
    let spec = config::load(&invocation, home)?.spec;
    let images = Images { store: Some(home.images()), fetch: Fetch::No };
    Ok(prepare(spec, keep, images)?.dry_run())
}

fn print_next_steps(
    begun: &InitReport,
    answers: &Answers,
    planned: Result<DryRun, Box<dyn Error>>,
) {
    report::eprintln(&format!("{GOOD}wrote{GOOD:#} {}, and trusted it", begun.manifest));
    if let Some(old) = &begun.set_aside {
        report::eprintln(&format!("{GOOD}kept{GOOD:#}  the old manifest as {old}"));
    }
    if let Some(prompt) = &begun.prompt_made {
        report::eprintln(&format!("{GOOD}wrote{GOOD:#} {prompt}, for you to fill in"));
    }
    match planned {
        Ok(dry_run) => report::out(&format!("\n{}", show_plan::posture_text(&dry_run))),
        Err(error) => {
            report::eprintln(&format!("{WARN}warning:{WARN:#} the posture is not known yet:"));
            report::cause(error);
        }
    }
    report::eprintln(&format!("\n{BOLD}next:{BOLD:#}"));
    match (&begun.prompt_made, &answers.agent) {
        (Some(_), _) => {
            let file = answers.agent.as_ref().and_then(|agent| agent.prompt_file.as_deref());
            let file = escape(file.unwrap_or(PROMPT).as_bytes());
            report::eprintln(&format!("  write {file}, then: belljar trust && belljar run"));
        }
        (None, Some(_)) => report::eprintln("  belljar run"),
        (None, None) => report::eprintln("  belljar run -- COMMAND"),
    }
}
