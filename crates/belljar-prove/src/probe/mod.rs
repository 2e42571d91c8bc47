//! The probes: each makes its attempts inside a sandbox and prints one line of JSON. A probe judges nothing.

mod counters;
mod dialogues;
mod environment;
mod files;
mod hunt;
mod kernel;
pub(crate) mod leave;
mod measure;
mod mounts;
mod network;
mod processes;
mod reach;
mod resources;
mod scratch;
mod syscalls;

use std::ffi::{CString, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::cleanup;
use crate::world;
pub(crate) use files::SPARE;
pub(crate) use network::raise_descriptors;
pub(crate) use resources::{MEMORY_LIMITS, OWN_LIMIT};

/// The first argument of a probe.
pub(crate) const PROBE: &str = "__probe";

/// Why a probe cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("no probe is called \"{0}\"")]
    Unknown(String),
    #[error("the probe lacks an argument: {0}")]
    Argument(&'static str),
    #[error("{0}")]
    Step(String, #[source] std::io::Error),
}

impl ProbeError {
    fn step(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let what = what.into();
        move |error| Self::Step(what, error.into())
    }
}

type Probed = Result<ProbeReport, ProbeError>;

/// Runs a probe if the first argument asks for one; `Some` is the exit code.
pub fn run_probe(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    if args.next()? != PROBE {
        return None;
    }
    let argv: Vec<OsString> = args.collect();
    Some(run(&argv))
}

fn run(argv: &[OsString]) -> i32 {
    let Some((name, rest)) = argv.split_first() else {
        return failed(&ProbeError::Argument("the probe's name"));
    };
    let name = name.to_string_lossy();
    let args = Arguments(rest);
    // These only arrange where a probe runs.
    match &*name {
        "as" => return scratch::as_user(&args),
        "scratch" => return scratch::run_in_scratch(&args, run),
        "in-group" => return scratch::run_in_group(&args, run),
        "soft-limit" => {
            return match args.number(0, "bytes").and_then(resources::limit_softly) {
                Ok(()) => run(&args.0[1..]),
                Err(error) => failed(&error),
            };
        }
        cleanup::SWEEP => {
            return match args.path(0, "a directory") {
                Ok(root) => cleanup::cleanup(root),
                Err(error) => failed(&error),
            };
        }
        world::WORLD | world::IN_WORLD => return in_a_world(&name, &args),
        _ => {}
    }
    match probe(&name, &args) {
        Ok(report) => print_report(&report),
        Err(error) => failed(&error),
    }
}

fn in_a_world(name: &str, args: &Arguments<'_>) -> i32 {
    let done = if name == world::WORLD {
        args.path(0, "a directory").map(world::serve)
    } else {
        args.number(0, "a process").map(|pid| world::become_one_of_it(pid as u32, &args.0[1..]))
    };
    done.unwrap_or_else(|error| failed(&error))
}

fn probe(name: &str, args: &Arguments<'_>) -> Probed {
    match name {
        "read" => files::read(args),
        "open-to-write" => files::open_to_write(args),
        "read-through-proc" => files::read_through_proc(args),
        "descriptors" => files::descriptors(args),
        "flip" => files::flip(args),
        "hard-link" => files::hard_link(args),
        "nodes" => files::nodes(args),
        "setuid" => files::setuid(args),
        "rewrite" => files::rewrite(args),
        "file-capability" => files::file_capability(args),
        "overlay-attributes" => files::overlay_attributes(args),
        "find" => files::find(args),
        "plant-link" => files::plant_link(args),
        "write-file" => files::write_file(args),
        "leave-links" => leave::links(args),
        "leave-specials" => leave::specials(args),
        "leave-bombs" => leave::bombs(args),
        "leave-names" => leave::names(args),
        "leave-marks" => leave::marks(args),
        "leave-hard-links" => leave::hard_links(args),
        "leave-locked" => leave::locked(args),
        "leave-plants" => leave::plants(args),
        "swap-own" => leave::swap_own(args),
        "control-files" => leave::control_files(args),
        "remount" => mounts::remount(args),
        "mount-calls" => mounts::mount_calls(args),
        "nested-namespace" => mounts::nested_namespace(args),
        "overlay-mount" => mounts::overlay_mount(args),
        "cgroup-mount" => mounts::cgroup_mount(args),
        "processes" => processes::processes(args),
        "trace" => processes::trace(args),
        "memory-of" => processes::memory_of(args),
        "steal-descriptor" => processes::steal_descriptor(args),
        "limit-of" => processes::limit_of(args),
        "namespaces" => processes::namespaces(args),
        "facts" => processes::facts(args),
        "crash" => processes::crash(args),
        "sleep" => processes::sleep(args),
        "stubborn" => processes::stubborn(args),
        "daemonize" => processes::daemonize(args),
        "keyring" => kernel::keyring(args),
        "surface" => kernel::surface(args),
        "terminal" => kernel::terminal(args),
        "administration" => kernel::administration(args),
        "fileless" => kernel::fileless(args),
        "core-limit" => kernel::core_limit(args),
        "plain-denials" => syscalls::plain_denials(args),
        "conditions" => syscalls::conditions(args),
        "unknown-numbers" => syscalls::unknown_numbers(args),
        "other-modes" => syscalls::other_modes(args),
        "connect-unix" => network::connect_unix(args),
        "connect" => network::connect(args),
        "sockets" => network::sockets(args),
        "listen" => network::listen(args),
        "dialogues" => dialogues::dialogues(args),
        "dialogues-and-stay" => dialogues::and_stay(args),
        "hunt" => hunt::hunt(args),
        "measure" => measure::measure(args),
        "flood" => network::flood(args),
        "forks" => resources::forks(args),
        "fill-memory" => resources::fill_memory(args),
        "raise-memory" => resources::raise_memory(args),
        "inotify" => resources::inotify(args),
        "take" => counters::take(args),
        "lease" => reach::lease(args),
        "open-now" => reach::open_now(args),
        "whiteout" => reach::whiteout(args),
        "requests" => reach::requests(args),
        "socket-options" => reach::socket_options(args),
        "many-files" => reach::many_files(args),
        "canary" => environment::canary(args),
        "truncate-output" => environment::truncate_output(args),
        "write-everywhere" => environment::write_everywhere(args),
        other => Err(ProbeError::Unknown(other.to_owned())),
    }
}

/// Starts on a line of its own: a probe may have written to its output before.
fn print_report(report: &ProbeReport) -> i32 {
    let Ok(line) = serde_json::to_string(report) else { return 1 };
    let mut out = std::io::stdout();
    match writeln!(out, "\n{line}").and_then(|()| out.flush()) {
        Ok(()) => report.facts.get("exit").and_then(|code| code.parse().ok()).unwrap_or(0),
        Err(_) => 1,
    }
}

/// Prints the report so far, and keeps running to be inspected.
fn say_and_stay(report: &ProbeReport, milliseconds: u64) {
    if milliseconds > 0 {
        print_report(report);
        std::thread::sleep(std::time::Duration::from_millis(milliseconds.min(20_000)));
    }
}

fn failed(error: &ProbeError) -> i32 {
    let _ = writeln!(std::io::stderr(), "probe: {}", belljar_spec::text::error_chain(error)); // there is no other place to report it
    1
}

/// The arguments after a probe's name.
struct Arguments<'a>(&'a [OsString]);

impl Arguments<'_> {
    fn all(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().map(OsString::as_os_str)
    }

    fn text(&self, at: usize, what: &'static str) -> Result<&str, ProbeError> {
        self.0.get(at).and_then(|word| word.to_str()).ok_or(ProbeError::Argument(what))
    }

    fn path(&self, at: usize, what: &'static str) -> Result<&Path, ProbeError> {
        self.0.get(at).map(Path::new).ok_or(ProbeError::Argument(what))
    }

    fn number(&self, at: usize, what: &'static str) -> Result<u64, ProbeError> {
        self.text(at, what)?.parse().map_err(|_| ProbeError::Argument(what))
    }
}

fn c_string(text: impl AsRef<OsStr>) -> Result<CString, ProbeError> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| ProbeError::Argument("a name without NUL"))
}

/// Makes an attempt in a child process, so that it cannot affect this one.
fn in_child(attempt: impl FnOnce() -> Result<(), rustix::io::Errno>) -> AttemptResult {
    use belljar_linux::sys::process::{exit_now, fork};
    use rustix::process::{WaitOptions, waitpid};
    match fork() {
        Ok(None) => exit_now(attempt().map_or_else(|error| error.raw_os_error(), |()| 0)),
        Ok(Some(child)) => match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => match (status.exit_status(), status.terminating_signal()) {
                (Some(0), _) => AttemptResult::Succeeded,
                (Some(errno), _) => AttemptResult::Errno(errno),
                (None, Some(signal)) => AttemptResult::Killed(signal),
                (None, None) => AttemptResult::Errno(libc::EIO),
            },
            Ok(None) => AttemptResult::Errno(libc::EIO),
            Err(error) => AttemptResult::Errno(error.raw_os_error()),
        },
        Err(error) => AttemptResult::Errno(error.raw_os_error()),
    }
}
