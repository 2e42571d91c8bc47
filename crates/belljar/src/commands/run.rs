//! `belljar run`: starts a command or an agent in a new sandbox.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use belljar::config::{self, ConfigError, Invocation, Loaded};
use belljar::home::Home;
use belljar::network;
use belljar::record::Outcome;
use belljar::reuse::check_name_is_free;
use belljar::run::timings::{Phase, mark};
use belljar::run::{
    Close, Fetch, Images, LaunchError, Observer, Output, Prepared, ReconcileError, Reconciled,
    Streams, launch, prepare,
};
use belljar::spec::text::escape;
use belljar::spec::wire::control::Keep;
use belljar::spec::{
    BackendChoice, BackendName, Clause, DecidedBy, EXIT_NOT_STARTED, Enforcement, ExecFailure,
    Hint, ImageUse, MainCommand, Origin, Posture, Required, RunId, RunSpec, SkippedBackend, Stdin,
    StopReason, Terminal,
};

use super::agent_run::{self, Attach, OutputMode};
use super::background::ToLaunch;
use super::not_found::{self, Mounts, Programs};
use super::progress::PullLine;
use super::result::{RunResult, write_result};
use super::reuse::{self, Reuse};
use super::run_refusal::{NotReady, NotStarted};
use super::{
    background, changes, control_files, end_line, environment, open_home, show_plan, time_format,
    timings, why,
};
use crate::cli::RunArgs;
use crate::cli::StdioKind;
use crate::report::{self, BOLD, DIM, WARN};

pub(crate) fn run(args: Box<RunArgs>) -> i32 {
    // The modes of the run's directories must not depend on the caller's umask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    start(&args).unwrap_or_else(|error| error.report(&args))
}

fn start(args: &RunArgs) -> Result<i32, NotStarted> {
    let stdio = StdioKind {
        stdin_is_terminal: std::io::stdin().is_terminal(),
        stdout_is_terminal: std::io::stdout().is_terminal(),
    };
    // Wrong usage creates nothing, not even the home.
    let invocation = args.invocation(&stdio, environment()).map_err(NotStarted::usage)?;
    check_usage(args, &invocation)?;
    check_terminal(args, &invocation, &stdio)?;
    if args.timings {
        timings::start();
    }
    let home = open_home().map_err(NotStarted::error)?;
    let spec = load(args, &invocation, &home)?;
    let mut name = None;
    if args.reuse && !args.dry_run {
        name = match reuse::enter(args, &home, &spec).map_err(NotStarted::Supervisor)? {
            Reuse::Exited(code) => return Ok(code),
            Reuse::NotRunning(name) => Some(name),
        };
    }
    let keep = if args.keeps() { Keep::UntilStopped } else { Keep::WhileCommandRuns };
    let progress = PullLine::new(!args.quiet && !args.json);
    let fetch = if args.dry_run { Fetch::No } else { Fetch::AsTheSpecSays(&progress) };
    mark(Phase::Settings);
    let images = Images { store: Some(home.images()), fetch };
    let prepared = prepare(spec.clone(), keep, images)?;
    if args.dry_run {
        return Ok(show_plan::show(&prepared.dry_run(), args.json));
    }
    mark(Phase::Plan);
    if !args.quiet {
        warn_of_image(args, prepared.plan.backend);
    }
    // Last: a secret may come from a program that asks the user.
    let secrets = match prepared.refusal() {
        Some(_) => Vec::new(),
        None => config::secret_values(&spec, &invocation.env, &invocation.cwd)
            .map_err(NotStarted::error)?,
    };
    mark(Phase::Settings);
    if spec.agent.is_none() && !args.keeps() && !args.detach {
        return run_in_foreground(args, &home, prepared.with_secrets(secrets));
    }
    if let Some(error) = prepared.refusal() {
        return Err(error.into());
    }
    let launch = ToLaunch { chosen: prepared.chosen(), spec, secrets };
    let started = if launch.spec.agent.is_some() {
        agent_run::start(&output_mode(args), &home, launch, None)
    } else {
        background::start(args, &home, launch, name)
    };
    started.map_err(NotStarted::Supervisor)
}

/// Refuses options that contradict each other.
fn check_usage(args: &RunArgs, invocation: &Invocation) -> Result<(), NotStarted> {
    let may_have_one = || config::may_name_agent(invocation) || config::may_name_image(invocation);
    if invocation.command.is_agent() && !may_have_one() {
        return Err(LaunchError::NoCommand.into());
    }
    if args.json && args.keeps() && !args.is_detached() && !args.dry_run {
        let needs = "-d: the output of a kept sandbox is not captured".to_owned();
        let option = "--json with --keep or --reuse".to_owned();
        return Err(NotStarted::usage(LaunchError::Needs { option, needs }));
    }
    if args.ttl.is_some() && !args.keeps() {
        let (option, needs) = ("--ttl".to_owned(), "--keep or --reuse; see --timeout".to_owned());
        return Err(NotStarted::usage(LaunchError::Needs { option, needs }));
    }
    if args.timings && (args.keeps() || args.detach) {
        return Err(NotStarted::usage(timings::only_foreground()));
    }
    Ok(())
}

/// An agent on a terminal needs one, and a person in front of it.
fn check_terminal(
    args: &RunArgs,
    invocation: &Invocation,
    stdio: &StdioKind,
) -> Result<(), NotStarted> {
    if invocation.command != MainCommand::AgentTerminal || args.dry_run {
        return Ok(());
    }
    let option = "an agent on a terminal (-t)".to_owned();
    let conflict = |option: String, other: &str, why: &str| {
        let (other, why) = (other.to_owned(), why.to_owned());
        Err(NotStarted::usage(LaunchError::Conflict { option, other, why }))
    };
    if args.is_detached() {
        return conflict(option, "-d", "nobody would be at the terminal");
    }
    if args.json {
        return conflict(option, "--json", "what the agent shows on a terminal is no data");
    }
    if !stdio.stdin_is_terminal || !stdio.stdout_is_terminal {
        let needs = "standard input and output to be a terminal; without one, give the agent a prompt: --prompt TEXT";
        return Err(NotStarted::usage(LaunchError::Needs { option, needs: needs.to_owned() }));
    }
    Ok(())
}

/// Resolves the run, and prints the warnings.
fn load(args: &RunArgs, invocation: &Invocation, home: &Home) -> Result<RunSpec, NotStarted> {
    let loaded = config::load(invocation, home).map_err(|error| {
        if is_usage(&error) { NotStarted::usage(error) } else { NotStarted::error(error) }
    })?;
    if !loaded.obstacles.is_empty() && !args.yes && !args.dry_run {
        return Err(NotStarted::NotReady(NotReady(loaded.obstacles)));
    }
    if !args.quiet {
        let advice = loaded.advice.iter().filter(|_| std::io::stderr().is_terminal());
        for warning in loaded.warnings.iter().chain(&loaded.obstacles).chain(advice) {
            report::eprintln(&format!("{WARN}warning:{WARN:#} {warning}"));
        }
    }
    if !args.quiet && !args.json {
        for line in &loaded.agent {
            let line = report::folded(&escape(line.as_bytes()), 2);
            report::eprintln(&format!("{DIM}{line}{DIM:#}"));
        }
    }
    let Loaded { mut spec, settings, .. } = loaded;
    if args.reuse && spec.name.is_none() {
        let (option, needs) = ("--reuse".to_owned(), "--name NAME".to_owned());
        return Err(NotStarted::usage(LaunchError::Needs { option, needs }));
    }
    // A name of the manifest is that of all runs in its directory.
    let is_own_name = settings.origin("sandbox.name").is_some_and(Origin::is_of_this_run);
    if let (Some(name), true) = (&spec.name, is_own_name && !args.reuse && !args.dry_run) {
        check_name_is_free(home, name).map_err(NotStarted::error)?;
    }
    if spec.backend == BackendChoice::Host && !args.tty {
        spec.terminal = Terminal::None; // the command uses the caller's terminal directly
    }
    let is_images = spec.image_defaults.command == DecidedBy::Image;
    if invocation.command.is_agent() && spec.agent_spec().is_none() && !is_images {
        return Err(LaunchError::NoCommand.into());
    }
    if spec.agent.is_some() {
        if args.timings {
            return Err(NotStarted::usage(timings::only_foreground()));
        }
        spec.terminal = Terminal::None;
        spec.stdin = Stdin::Null;
    }
    Ok(spec)
}

/// An image that the chosen backend does not use was probably meant to be used.
fn warn_of_image(args: &RunArgs, backend: BackendName) {
    if args.names_image() && backend.features().image == ImageUse::None {
        report::eprintln(&format!(
            "{WARN}warning:{WARN:#} --image has no effect on the {backend} backend, which uses the host's programs"
        ));
        report::hint(Hint::ImageNeedsSandbox);
    }
}

/// Runs the command under this process, and waits for it.
fn run_in_foreground(
    args: &RunArgs,
    home: &Home,
    prepared: Prepared<'_>,
) -> Result<i32, NotStarted> {
    let spec = prepared.spec.clone();
    let streams = streams(args, &spec).map_err(NotStarted::error)?;
    if !args.quiet && prepared.refusal().is_none() {
        prepared.skipped_backends().iter().for_each(report::skipped_backend);
    }
    let verbose = !args.quiet && !args.json && std::io::stderr().is_terminal();
    let waived = spec.waivers.iter().map(|waiver| waiver.clause).collect();
    let applies_at_end = prepared.plan.applies_at_end();
    let mut announcer = Announcer { verbose, warn: !args.quiet, waived, applies_at_end };
    let launched = launch(home, prepared, streams, Close::InBackground, &mut announcer);
    mark(Phase::Close);
    timings::print();
    let outcome = launched?;
    let code = finish(args, &spec, &outcome, verbose);
    // To give back memory that the process in the background shares would copy it first, and this process exits.
    std::mem::forget((outcome, spec));
    Ok(code)
}

/// What an agent's run prints, and where.
fn output_mode(args: &RunArgs) -> OutputMode {
    OutputMode {
        attach: if args.is_detached() { Attach::Detach } else { Attach::Wait },
        json: args.json,
        quiet: args.quiet,
        result: args.result.clone(),
    }
}

/// Whether the exit code is that of wrong usage; every other error is a refusal.
fn is_usage(error: &ConfigError) -> bool {
    use belljar::spec::resolve::ResolveError;
    matches!(
        error,
        ConfigError::Flag(_)
            | ConfigError::ForAgents { .. }
            | ConfigError::NotInTerminal { .. }
            | ConfigError::Resolve(ResolveError::NoCommand)
    )
}

fn streams(args: &RunArgs, spec: &RunSpec) -> std::io::Result<Streams> {
    let copy =
        |fd: std::os::fd::BorrowedFd<'_>| -> std::io::Result<OwnedFd> { fd.try_clone_to_owned() };
    let output = if args.json {
        Output::Captured
    } else {
        Output::Passed {
            stdout: copy(std::io::stdout().as_fd())?,
            stderr: copy(std::io::stderr().as_fd())?,
        }
    };
    let stdin = match spec.stdin {
        Stdin::Passed => Some(copy(std::io::stdin().as_fd())?),
        Stdin::Null => None,
    };
    let terminal = match spec.terminal {
        Terminal::Pty => Some(copy(std::io::stdin().as_fd())?),
        Terminal::None => None,
    };
    Ok(Streams { stdin, output, terminal })
}

/// Prints one line when the run has started, and warnings.
struct Announcer {
    verbose: bool,
    warn: bool,
    waived: Vec<Clause>,
    /// The workspace is sent, and changes with the end of the run.
    applies_at_end: bool,
}

/// The clauses that are not enforced although this kind of run usually has them: the waived ones, and those that every
/// run should have. What a setting decides, such as a writable workspace, is not repeated at every start.
fn unusual(posture: &Posture, waived: &[Clause]) -> Option<String> {
    let names = |of: &dyn Fn(Clause, &Enforcement) -> bool| {
        let found = posture.not_enforced().filter(|(clause, enforcement)| of(*clause, enforcement));
        found.map(|(clause, _)| clause.to_string()).collect::<Vec<_>>()
    };
    let is_waived = |clause: Clause, _: &Enforcement| waived.contains(&clause);
    let is_expected = |clause: Clause| clause.required() == Required::Always;
    let status = |wanted: &'static str| {
        names(&move |clause, enforcement| {
            !waived.contains(&clause) && is_expected(clause) && enforcement.status() == wanted
        })
    };
    let parts =
        [("waived", names(&is_waived)), ("weaker", status("weaker")), ("absent", status("absent"))];
    let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> =
        parts.map(|(what, names)| format!("{what}: {}", names.join(", "))).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

impl Observer for Announcer {
    fn started(&mut self, run: &RunId, backend: BackendName, posture: &Posture) {
        if !self.verbose {
            return;
        }
        let mut line =
            format!("{DIM}belljar {}{DIM:#} {BOLD}{backend}{BOLD:#}, attested", run.tail());
        if let Some(unusual) = unusual(posture, &self.waived) {
            line.push_str(&format!("; {unusual}"));
        }
        if self.applies_at_end {
            line.push_str("; changes to the workspace are applied when the run ends");
        }
        report::eprintln(&format!("{line}\r")); // the caller's terminal may be in raw mode already
    }

    fn warned(&mut self, warning: &str) {
        if self.warn {
            report::eprintln(&format!("{WARN}warning:{WARN:#} {warning}\r"));
        }
    }

    fn skipped_backends(&mut self, step: &SkippedBackend) {
        if self.warn {
            report::skipped_backend(step);
        }
    }

    fn reconciled(&mut self, found: &Result<Reconciled, ReconcileError>) {
        let left = match found {
            Err(error) => vec![error.to_string()],
            Ok(found) => found.left.clone(),
        };
        for what in left.iter().filter(|_| self.warn) {
            report::eprintln(&format!(
                "{WARN}warning:{WARN:#} an earlier run left something behind: {what}\r"
            ));
        }
    }
}

fn finish(args: &RunArgs, spec: &RunSpec, outcome: &Outcome, verbose: bool) -> i32 {
    let code = outcome.exit.process_code();
    let result = RunResult::of(outcome);
    if args.json && report::json(&result).is_err() {
        return EXIT_NOT_STARTED;
    }
    if let Some(path) = &args.result
        && let Err(error) = write_result(path, &result)
    {
        report::eprintln(&format!("error: cannot write {}: {error}", path.display()));
        return EXIT_NOT_STARTED;
    }
    if let Some(failure) = &outcome.failure
        && !args.json
    {
        explain_failure(failure, outcome.backend, spec);
    }
    // The last line of a terminal says that it was stopped.
    let is_said = verbose && outcome.reason == StopReason::Stopped;
    if let Some(line) = end_line::of_command(outcome, &spec.limits).filter(|_| !is_said) {
        report::eprintln(&format!("{WARN}belljar:{WARN:#} {line}"));
    }
    if let Some(detail) = &outcome.detail
        && !args.json
    {
        report::eprintln(&format!("{WARN}error:{WARN:#} belljar stopped the run: {detail}"));
    }
    if let Some(leak) = &outcome.leak {
        report::eprintln(&format!("{WARN}warning:{WARN:#} the run left something behind: {leak}"));
    }
    if args.learn && !args.quiet && !args.json {
        learned(outcome);
    }
    if verbose && outcome.failure.is_none() {
        report::eprintln(&format!(
            "{DIM}belljar {}{DIM:#} {}, {}",
            outcome.id.tail(),
            to_text(outcome),
            time_format::duration(outcome.usage.wall_ms),
        ));
    }
    if verbose {
        changes::print_summary(outcome);
    }
    if !args.quiet && !args.json {
        changes::print_applied(outcome, verbose);
        changes::print_autorun_files(outcome);
        control_files::print_new(outcome);
    }
    code
}

/// Prints the hosts that `--learn` found, to stderr: stdout is the command's.
fn learned(outcome: &Outcome) {
    let account =
        open_home().ok().and_then(|home| network::network_report(&home, &outcome.id).ok());
    match account {
        Some(account) => report::eprintln(why::learned_list(&account).trim_end()),
        None => report::eprintln(&format!("{WARN}warning:{WARN:#} the record cannot be read")),
    }
}

fn to_text(outcome: &Outcome) -> String {
    match (outcome.exit.code, outcome.exit.signal) {
        (Some(code), _) => format!("{} {code}", outcome.reason.name()),
        (None, Some(signal)) if outcome.reason == StopReason::Signal => {
            format!("killed by signal {signal}")
        }
        (None, Some(signal)) => format!("{}, by signal {signal}", outcome.reason.name()),
        (None, None) => outcome.reason.name().to_owned(),
    }
}

/// Explains exit codes 126 and 127.
pub(super) fn explain_failure(failure: &ExecFailure, backend: BackendName, spec: &RunSpec) {
    let programs = Programs::of(Some(backend), spec);
    not_found::explain(failure, programs, &spec.command, Mounts::OfNextRun);
}
