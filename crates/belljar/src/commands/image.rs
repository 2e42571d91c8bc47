//! `belljar image`: Belljar's own store of images, and builds with engines.

mod own;

use std::collections::VecDeque;
use std::sync::Mutex;

use belljar::image::{
    self, AGENT_DOCKERFILE, Cache, Outcome, Rebuild, RebuildReason, Request, Source, Watcher,
};
use belljar::run::PullProgress;
use belljar::spec::text::escape;
use belljar::spec::{BackendName, EXIT_NOT_STARTED, OsText};
use serde_json::json;

use super::progress::PullLine;
use super::{CommandResult, EXIT_INCOMPLETE, exit_code, open_home};
use crate::cli::{BuildArgs, ImageArgs, ImageVerb};
use crate::report::{self, BOLD, DIM, GOOD, WARN};

/// Lines of a quiet build's output that are shown if it fails.
const LAST_LINES: usize = 20;

pub(crate) fn run(args: ImageArgs) -> i32 {
    match args.what {
        ImageVerb::Load(args) => own::finish(own::load(&args), args.json),
        ImageVerb::Pull(args) => own::finish(own::pull(&args), args.json),
        ImageVerb::Import(args) => own::finish(own::import(&args), args.json),
        ImageVerb::List(args) => own::finish(own::list(&args), args.json),
        ImageVerb::Inspect(args) => own::finish(own::inspect(&args), args.json),
        ImageVerb::Export(args) => own::finish(own::export(&args), false),
        ImageVerb::Rm(args) => own::finish(own::remove(&args), false),
        ImageVerb::Prune(args) => own::finish(own::prune(&args), args.json),
        ImageVerb::Build(args) => exit_code(build(&args)),
        ImageVerb::Dockerfile => {
            report::out(AGENT_DOCKERFILE);
            0
        }
    }
}

fn build(args: &BuildArgs) -> CommandResult {
    let home = open_home()?;
    let request = Request {
        backend: args.backend,
        name: args.name.clone(),
        source: match args.agent {
            true => Source::Agent,
            false => Source::Files { dockerfile: args.file.clone(), context: args.context.clone() },
        },
        arguments: args.arguments(),
        network: args.network.into(),
        cache: if args.no_cache { Cache::Ignore } else { Cache::Use },
        rebuild: if args.force { Rebuild::Always } else { Rebuild::WhenChanged },
    };
    let quiet = args.quiet || args.json;
    let screen = Screen { quiet, progress: PullLine::new(!quiet), last_lines: Mutex::default() };
    match image::build(&home, request, &screen) {
        Ok(outcome) => {
            if args.json {
                report::json(&object(&outcome))?;
            } else {
                screen.over(&outcome);
                report::out(&format!("{}\n", escape(outcome.id.as_bytes())));
            }
            Ok(0)
        }
        Err(error) => {
            screen.show_last_lines();
            if args.json {
                report::json(&json!({ "error": error.to_string(), "fix": error.fix() }))?;
            }
            report::error(&error, error.fix().as_deref());
            Ok(if error.is_build_failure() { EXIT_INCOMPLETE } else { EXIT_NOT_STARTED })
        }
    }
}

fn object(outcome: &Outcome) -> serde_json::Value {
    let why: Vec<String> = outcome.why.iter().map(ToString::to_string).collect();
    json!({
        "name": outcome.name,
        "backend": outcome.backend,
        "id": outcome.id,
        "fingerprint": outcome.fingerprint,
        "built": !why.is_empty(),
        "why": why,
    })
}

/// Prints the progress of a build. The engine's output comes from the Dockerfile and its programs, so it is
/// escaped.
#[derive(Debug)]
struct Screen {
    quiet: bool,
    progress: PullLine,
    last_lines: Mutex<VecDeque<String>>,
}

impl Screen {
    fn print(&self, text: &str) {
        if !self.quiet {
            self.progress.clear();
            report::eprintln(text);
        }
    }

    fn over(&self, outcome: &Outcome) {
        let Outcome { name, backend, why, .. } = outcome;
        match why.is_empty() {
            true => self.print(&format!("{GOOD}{name}{GOOD:#} on {backend} is up to date")),
            false => self.print(&format!("{GOOD}{name}{GOOD:#} on {backend} is built")),
        }
    }

    fn show_last_lines(&self) {
        let last_lines =
            self.last_lines.lock().map(|last_lines| last_lines.iter().cloned().collect::<Vec<_>>());
        for line in last_lines.unwrap_or_default() {
            report::eprintln(&line);
        }
    }
}

impl PullProgress for Screen {
    fn fetched(&self, image: &str, bytes: u64, of: u64) {
        self.progress.fetched(image, bytes, of);
    }

    fn done(&self) {
        self.progress.done();
    }
}

impl Watcher for Screen {
    fn skipped(&self, path: &OsText, what: &str) {
        self.print(&format!("{WARN}skipped:{WARN:#} {path} is {what}"));
    }

    fn written_by_runs(&self) {
        self.print(&format!(
            "{WARN}note:{WARN:#} a run could write to the build context, and the Dockerfile may execute \
             its files; use --network none to build without a network"
        ));
    }

    fn begins(&self, name: &str, backend: BackendName, why: &[RebuildReason]) {
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        self.print(&format!(
            "{BOLD}{name}{BOLD:#} on {backend}: building, because {}",
            why.join("; ")
        ));
    }

    fn line(&self, line: &str) {
        let line = escape(line.replace('\t', "    ").as_bytes());
        let line = format!("{DIM}  {line}{DIM:#}");
        if !self.quiet {
            self.print(&line);
        } else if let Ok(mut last_lines) = self.last_lines.lock() {
            last_lines.push_back(line);
            if last_lines.len() > LAST_LINES {
                last_lines.pop_front();
            }
        }
    }
}
