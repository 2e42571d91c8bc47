//! `belljar events`: prints the lines of a run's record as they are stored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::time::Duration;

use belljar::record::EVENTS;
use belljar::spec::text::escape;
use belljar::spec::{EXIT_USAGE, EventKind};
use belljar::store::{self, Life};
use rustix::fs::{Mode, OFlags};

use super::descriptor::{is_closed, write_all};
use super::{CommandResult, exit_code, find_or_newest, open_home};
use crate::cli::EventsArgs;
use crate::report;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longer lines are never written.
const MAX_LINE: usize = 2 << 20;

#[derive(Debug, thiserror::Error)]
#[error("line {line} of the record is too long for an event; to check it: belljar verify {run}")]
struct TooLong {
    line: u64,
    run: String,
}

pub(crate) fn run(args: &EventsArgs) -> i32 {
    exit_code(act(args))
}

/// A kind that no event has.
#[derive(Debug, thiserror::Error)]
#[error(
    "no event has the kind \"{0}\"; docs/record.md lists the kinds, such as run.start, exec.start, limit.hit"
)]
struct UnknownKind(String);

fn act(args: &EventsArgs) -> CommandResult {
    let is_known =
        |kind: &&String| serde_json::from_value::<EventKind>((**kind).clone().into()).is_ok();
    if let Some(unknown) = args.kinds.iter().find(|kind| !is_known(kind)) {
        report::error(&UnknownKind(escape(unknown.as_bytes())), None);
        return Ok(EXIT_USAGE);
    }
    let home = open_home()?;
    let run = find_or_newest(&home, args.run.as_deref())?.id;
    let path = home.run_dir(&run).join(EVENTS);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from);
    let file = file.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut lines = BufReader::new(File::from(file));
    let (mut line, mut count) = (Vec::new(), 0);
    loop {
        // Checked before reading, so that the last events are not missed.
        let live = matches!(store::life::of(&home, &run), Life::Live(_));
        loop {
            let room = (MAX_LINE + 1 - line.len()) as u64;
            Read::by_ref(&mut lines).take(room).read_until(b'\n', &mut line)?;
            if !line.ends_with(b"\n") {
                if line.len() > MAX_LINE {
                    return Err(TooLong { line: count + 1, run: run.to_string() }.into());
                }
                break; // still being written
            }
            count += 1;
            if is_wanted(&args.kinds, &line) {
                match show(&line) {
                    Err(error) if is_closed(&error) => return Ok(0),
                    shown => shown?,
                }
            }
            line.clear();
        }
        if !args.follow || !live {
            return Ok(0);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_wanted(kinds: &[String], line: &[u8]) -> bool {
    if kinds.is_empty() {
        return true;
    }
    let event: Option<serde_json::Value> = serde_json::from_slice(line).ok();
    let kind = event.as_ref().and_then(|event| event.get("kind")?.as_str());
    kinds.iter().any(|wanted| Some(wanted.as_str()) == kind)
}

/// JSON escapes most control characters; on a terminal, the rest is escaped too.
fn show(line: &[u8]) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return write_all(rustix::stdio::stdout(), line);
    }
    let text = escape(line.strip_suffix(b"\n").unwrap_or(line));
    write_all(rustix::stdio::stdout(), format!("{text}\n").as_bytes())
}
