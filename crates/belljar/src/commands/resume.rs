//! `belljar resume` and `belljar fork`: start a new run from a checkpoint of another.

use belljar::config;
use belljar::run::{Ask, Extend, ResumeMismatch, Resumed, prepare_resume};
use belljar::spec::{EXIT_NOT_STARTED, EXIT_USAGE, HumanDuration, Money, ResumeKind};
use belljar::store;

use super::agent_run::{self, Attach, OutputMode};
use super::background::ToLaunch;
use super::result::{RunResult, write_result};
use super::{CommandResult, environment, open_home, reconcile_first};
use crate::cli::{ForkArgs, ResumeArgs, ResumeOriginArgs};
use crate::report;

pub(crate) fn resume(args: &ResumeArgs) -> i32 {
    act(&args.run, &args.origin, ResumeKind::Resume, None)
}

pub(crate) fn fork(args: &ForkArgs) -> i32 {
    act(&args.run, &args.origin, ResumeKind::Fork, args.name.clone())
}

fn act(run: &str, args: &ResumeOriginArgs, kind: ResumeKind, name: Option<String>) -> i32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let options = match (extend(args), allow(args)) {
        (Ok(extend), Ok(allow)) => (extend, allow),
        (Err(why), _) | (_, Err(why)) => {
            report::eprintln(&format!("error: {why}"));
            return EXIT_USAGE;
        }
    };
    match start(run, args, kind, name, options) {
        Ok(code) => code,
        Err(error) => {
            let object = RunResult::failed(error.as_ref(), EXIT_NOT_STARTED);
            if args.json {
                let _ = report::json(&object);
            }
            if let Some(path) = &args.result {
                let _ = write_result(path, &object); // the exit code reports the failure too
            }
            report::failure(error.as_ref());
            EXIT_NOT_STARTED
        }
    }
}

fn start(
    run: &str,
    args: &ResumeOriginArgs,
    kind: ResumeKind,
    name: Option<String>,
    (extend, allow): (Extend, Vec<ResumeMismatch>),
) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?; // closes the record of a run whose supervisor died
    let run = store::find(&home, run)?.id;
    let env = environment();
    let cwd = std::env::current_dir().unwrap_or_default();
    let prompt = match (&args.prompt, &args.prompt_file) {
        (None, Some(file)) => Some(config::read_prompt_file(file, &cwd, &home)?),
        (prompt, _) => prompt.clone(),
    };
    let ask = Ask { kind, run, from: args.from, extend, allow, prompt, name };
    let Resumed { spec, resumed_from, lock } = prepare_resume(&home, &ask, &env)?;
    let secrets = config::secret_values(&spec, &env, &cwd)?;
    // A sandbox without an agent waits for `exec`: nothing in it would ever end the command.
    let is_detached = args.detach || spec.agent.is_none();
    let mode = OutputMode {
        attach: if is_detached { Attach::Detach } else { Attach::Wait },
        json: args.json,
        quiet: args.quiet,
        result: args.result.clone(),
    };
    // The supervisor prepares the run.
    let launch = ToLaunch { spec, secrets, chosen: None };
    agent_run::start(&mode, &home, launch, Some((Box::new(resumed_from), lock)))
}

fn extend(args: &ResumeOriginArgs) -> Result<Extend, String> {
    let time = match &args.extend_time {
        Some(text) => text
            .parse::<HumanDuration>()
            .map_err(|error| format!("--extend-time: {error}"))?
            .as_duration(),
        None => Default::default(),
    };
    let cost = match args.extend_cost_usd {
        Some(dollars) => Money::from_dollars(dollars)
            .ok_or_else(|| format!("--extend-cost-usd: {dollars} is not a valid amount"))?,
        None => Money::ZERO,
    };
    Ok(Extend {
        iterations: args.extend_iterations.unwrap_or_default(),
        time,
        cost,
        turns: args.extend_turns.unwrap_or_default(),
        tokens: args.extend_tokens.unwrap_or_default(),
    })
}

fn allow(args: &ResumeOriginArgs) -> Result<Vec<ResumeMismatch>, String> {
    let parsed =
        args.allow.iter().map(|text| text.parse().map_err(|why| format!("--allow: {why}")));
    parsed.collect()
}
