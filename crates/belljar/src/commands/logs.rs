//! `belljar logs`: prints the recorded output of a run's commands.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use belljar::home::Home;
use belljar::output::{Content, Copies, Flow, Key, Outputs, Pieces};
use belljar::record::OutputPiece;
use belljar::spec::{Event, EventKind, OutputStream, RunId};
use belljar::store::{self, Life};
use jiff::Timestamp;

use super::agent_follow::{self, Form, Until};
use super::descriptor::{is_closed, write_all};
use super::screen::Escaper;
use super::{CommandResult, exit_code, find_or_newest, open_home, time_format};
use crate::cli::LogsArgs;
use crate::report;

/// How often `--follow` looks for more. The record is written every 50 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &LogsArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &LogsArgs) -> CommandResult {
    let since = args.since.as_deref().map(time_format::since).transpose()?;
    let home = open_home()?;
    let run = find_or_newest(&home, args.run.as_deref())?.id;
    if args.agent {
        let until = if args.follow { Until::RunEnds } else { Until::Now };
        let form = if args.json { Form::Json } else { Form::Text };
        return agent_follow::print(&home, &run, until, form, since);
    }
    let directory = home.run_dir(&run);
    if let Some(exec) = args.exec
        && !has_exec(&directory, exec)?
    {
        return Err(NoSuchExec { run, exec }.into());
    }
    let filter = OutputFilter { exec: args.exec, stream: stream(args), since };
    let mut outputs = Outputs::new(directory.clone());
    for_each(&directory, &filter, |piece| {
        outputs.learn(&piece);
        Ok(Flow::Continue)
    })?;
    let skip = match args.tail {
        Some(tail) => lines(&directory, &filter, &mut outputs)?.saturating_sub(tail),
        None => 0,
    };
    let printer = Printer::new(args, skip);
    print(&home, &run, args.follow, &filter, outputs, printer)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "run {run} has no command number {exec}; 0 is its main command, and each exec has the next number"
)]
struct NoSuchExec {
    run: RunId,
    exec: u32,
}

/// Whether the record has a command of that number.
fn has_exec(directory: &Path, exec: u32) -> Result<bool, Box<dyn std::error::Error>> {
    if exec == 0 {
        return Ok(true); // it may have printed nothing yet
    }
    let file = std::fs::File::open(directory.join(belljar::record::EVENTS))?;
    for line in std::io::BufRead::lines(std::io::BufReader::new(file)) {
        let event: Option<Event> = serde_json::from_str(&line?).ok();
        let is_start = |event: &Event| event.kind == EventKind::ExecStart;
        let number = event.filter(is_start).and_then(|event| event.data["exec"].as_u64());
        if number == Some(u64::from(exec)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn stream(args: &LogsArgs) -> Option<OutputStream> {
    match (args.stdout, args.stderr) {
        (true, _) => Some(OutputStream::Stdout),
        (_, true) => Some(OutputStream::Stderr),
        _ => None,
    }
}

/// Which pieces of output are shown.
#[derive(Debug)]
struct OutputFilter {
    exec: Option<u32>,
    stream: Option<OutputStream>,
    since: Option<Timestamp>,
}

impl OutputFilter {
    /// A copy is shown only if its exec number is given.
    fn copies(&self) -> Copies {
        if self.exec.is_some() { Copies::Shown } else { Copies::LeftOut }
    }

    fn matches(&self, piece: &OutputPiece) -> bool {
        let late = |since: &Timestamp| piece.time.parse::<Timestamp>().is_ok_and(|at| at >= *since);
        self.exec.is_none_or(|exec| exec == piece.exec)
            && self.stream.is_none_or(|stream| stream == piece.stream)
            && self.since.as_ref().is_none_or(late)
    }
}

fn for_each(
    directory: &Path,
    filter: &OutputFilter,
    mut take: impl FnMut(OutputPiece) -> Result<Flow, Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut pieces = Pieces::open(directory, filter.copies())?;
    while let Some(piece) = pieces.next()? {
        if take(piece)? == Flow::Stop {
            break;
        }
    }
    Ok(())
}

/// Counts the lines so far; an unfinished line counts.
fn lines(
    directory: &Path,
    filter: &OutputFilter,
    outputs: &mut Outputs,
) -> Result<u64, Box<dyn std::error::Error>> {
    let (mut count, mut whole) = (0, true);
    for_each(directory, filter, |piece| {
        if !filter.matches(&piece) {
            return Ok(Flow::Continue);
        }
        let counted = outputs.read(&piece, &mut |content| {
            if let Content::Bytes(bytes) = content {
                count += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
                whole = bytes.ends_with(b"\n");
            }
            Flow::Continue
        });
        Ok(counted?)
    })?;
    Ok(count + u64::from(!whole))
}

fn print(
    home: &Home,
    run: &RunId,
    follow: bool,
    filter: &OutputFilter,
    mut outputs: Outputs,
    mut printer: Printer,
) -> CommandResult {
    let mut pieces = Pieces::open(&home.run_dir(run), filter.copies())?;
    loop {
        // Checked before reading, so that the last output is not missed.
        let live = matches!(store::life::of(home, run), Life::Live(_));
        while let Some(piece) = pieces.next()? {
            if filter.matches(&piece) {
                let (key, time) = ((piece.exec, piece.stream), piece.time.as_str());
                let take = &mut |content: Content<'_>| printer.take(key, time, content);
                if outputs.read(&piece, take)? == Flow::Stop {
                    return printer.stopped();
                }
            }
        }
        if !follow || !live {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    printer.finish()
}

/// Writes the output to stdout and stderr.
#[derive(Debug)]
struct Printer {
    stdout: Sink,
    stderr: Sink,
    timestamps: bool,
    /// Lines to skip before the first that is shown.
    skip: u64,
    lost: BTreeMap<Key, u64>,
    failed: Option<io::Error>,
}

#[derive(Debug)]
struct Sink {
    stream: OutputStream,
    /// Set on a terminal.
    escaper: Option<Escaper>,
    in_line: bool,
}

impl Printer {
    fn new(args: &LogsArgs, skip: u64) -> Self {
        let sink = |stream, is_terminal: bool| Sink {
            stream,
            escaper: (is_terminal && !args.raw).then(Escaper::default),
            in_line: false,
        };
        Self {
            stdout: sink(OutputStream::Stdout, io::stdout().is_terminal()),
            stderr: sink(OutputStream::Stderr, io::stderr().is_terminal()),
            timestamps: args.timestamps,
            skip,
            lost: BTreeMap::new(),
            failed: None,
        }
    }

    fn take(&mut self, key: Key, time: &str, content: Content<'_>) -> Flow {
        let mut bytes = match content {
            Content::Lost(count) => {
                *self.lost.entry(key).or_default() += count;
                return Flow::Continue;
            }
            Content::Bytes(bytes) => bytes,
        };
        if let Some(lost) = self.lost.remove(&key) {
            print_lost(key, lost);
        }
        while self.skip > 0 {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                return Flow::Continue;
            };
            bytes = &bytes[end + 1..];
            self.skip -= 1;
        }
        let time = self.timestamps.then_some(time);
        let sink = match key.1 {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        match sink.write(bytes, time) {
            Ok(()) => Flow::Continue,
            Err(error) => {
                self.failed = Some(error);
                Flow::Stop
            }
        }
    }

    fn finish(mut self) -> CommandResult {
        for (key, lost) in &self.lost {
            print_lost(*key, *lost);
        }
        let ended = self.stdout.end().and(self.stderr.end());
        self.failed = ended.err();
        self.stopped()
    }

    /// A closed pipe is no error.
    fn stopped(self) -> CommandResult {
        match self.failed {
            Some(error) if !is_closed(&error) => Err(error.into()),
            _ => Ok(0),
        }
    }
}

fn print_lost((exec, stream): Key, lost: u64) {
    let of = if exec == 0 { String::new() } else { format!(" of command {exec}") };
    let name = stream.name();
    report::eprintln(&format!(
        "belljar: {lost} bytes of {name}{of} were not recorded (limits.output)"
    ));
}

impl Sink {
    fn write(&mut self, bytes: &[u8], time: Option<&str>) -> io::Result<()> {
        let Some(time) = time else { return self.put(bytes) };
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.in_line {
                self.put(format!("{} ", belljar::spec::text::escape(time.as_bytes())).as_bytes())?;
            }
            self.in_line = !line.ends_with(b"\n");
            self.put(line)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.escaper {
            Some(escaper) => {
                let text = escaper.escaped(bytes);
                self.send(text.as_bytes())
            }
            None => self.send(bytes),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let rest = self.escaper.as_mut().map(Escaper::rest).unwrap_or_default();
        self.send(rest.as_bytes())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.stream {
            OutputStream::Stdout => write_all(rustix::stdio::stdout(), bytes),
            OutputStream::Stderr => write_all(rustix::stdio::stderr(), bytes),
        }
    }
}
