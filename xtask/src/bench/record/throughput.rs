//! How fast output goes through a launcher that records all of it, and how large it grows.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar::home::Home;

use super::pipeline::{self, Ran, Sink};
use super::{RecordBench, RecordSizes};
use crate::bench::outcome::{Part, Target, at_least, at_most, figure};
use crate::bench::rounds::Times;

const TO_SHELL: Target = at_least(0.5, "x").aim(0.8);
const PEAK: Target = at_most(64.0, "MiB");
const LINE: &str = "a line as programs print them, with some sixty characters in it";

/// What is put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Produced {
    Zeros,
    Lines,
}

/// How it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// `cmd | cat > file`, without a sandbox and without a record.
    Shell,
    /// The same, and the file is on the disk at the end, as a record is.
    ShellSynced,
    /// With the built-in `limits.output`, past which a ring is kept.
    Ours(Sink),
    /// Every byte is kept.
    OursAllKept(Sink),
}

struct ThroughputCase {
    produced: Produced,
    by: By,
    times: Vec<Duration>,
    processor: Vec<Duration>,
    peak_kib: u64,
}

const CASES: [(Produced, By); 12] = [
    (Produced::Zeros, By::Shell),
    (Produced::Zeros, By::ShellSynced),
    (Produced::Zeros, By::Ours(Sink::Null)),
    (Produced::Zeros, By::Ours(Sink::File)),
    (Produced::Zeros, By::Ours(Sink::Cat)),
    (Produced::Zeros, By::OursAllKept(Sink::File)),
    (Produced::Zeros, By::OursAllKept(Sink::Cat)),
    (Produced::Lines, By::Shell),
    (Produced::Lines, By::Ours(Sink::Null)),
    (Produced::Lines, By::Ours(Sink::File)),
    (Produced::Lines, By::Ours(Sink::Cat)),
    (Produced::Lines, By::OursAllKept(Sink::File)),
];

pub(crate) fn measure(bench: &RecordBench) -> Result<Part> {
    let RecordSizes { output, output_rounds: rounds, .. } = bench.sizes;
    let home = bench.home()?;
    let make = |(produced, by)| ThroughputCase {
        produced,
        by,
        times: vec![],
        processor: vec![],
        peak_kib: 0,
    };
    let mut cases = CASES.map(make);
    for round in 0..rounds {
        for turn in 0..cases.len() {
            let case = &mut cases[(round + turn) % CASES.len()];
            let Ran { time, processor, peak_kib } =
                case.run(bench).with_context(|| format!("{}, round {round}", case.name()))?;
            case.times.push(time);
            case.processor.push(processor);
            case.peak_kib = case.peak_kib.max(peak_kib);
            forget_runs(&home)?; // or a few rounds fill the disk
        }
    }
    Ok(report(cases, output, rounds))
}

fn report(cases: [ThroughputCase; CASES.len()], output: u64, rounds: usize) -> Part {
    let mib = (output >> 20) as f64;
    let mut part = Part::new(
        "throughput",
        format!("{mib:.0} MiB of output through the launcher into a file, {rounds} rounds in turn"),
    );
    let shell = |produced, of: fn(&ThroughputCase) -> f64| {
        let found = cases.iter().find(|case| case.by == By::Shell && case.produced == produced);
        found.map_or(f64::NAN, of)
    };
    let mut peak = 0.0_f64;
    for case in &cases {
        let ratio = shell(case.produced, ThroughputCase::typical) / case.typical();
        let mut figures = vec![
            figure("p50", mib / case.typical() * 1000.0, "MiB/s"),
            figure("ratio", ratio, "x"),
            figure("best", mib / case.best() * 1000.0, "MiB/s"),
            figure("processor", case.work() / mib, "ms a MiB"),
            figure("work", case.work() / shell(case.produced, ThroughputCase::work), "x"),
        ];
        if case.is_ours() {
            let resident = case.peak_kib as f64 / 1024.0;
            peak = peak.max(resident);
            figures.push(figure("launcher's peak", resident, "MiB"));
        }
        part.row(case.name(), figures);
        // Here the launcher stands where `cat` stands for the shell, and its record where the file does. The
        // other rows write everything a second time.
        if case.by == By::Ours(Sink::Null) {
            let what = format!("{}, to `cmd | cat > file`", case.name());
            part.compare(what, ratio, TO_SHELL);
        }
    }
    part.compare("the launcher's peak memory", peak, PEAK);
    part.note(
        "processor time is of all processes together; the load changes it less than the time",
    );
    part.note(
        "with `> /dev/null` the record is the file; in the other rows it is written besides it. What \
         is kept of it is on the disk at the end; `cat` alone leaves that to the system",
    );
    part
}

/// All in milliseconds.
impl ThroughputCase {
    fn typical(&self) -> f64 {
        Times::new(self.times.clone()).percentile(50)
    }

    fn best(&self) -> f64 {
        Times::new(self.times.clone()).percentile(1)
    }

    fn work(&self) -> f64 {
        Times::new(self.processor.clone()).percentile(50)
    }

    fn is_ours(&self) -> bool {
        matches!(self.by, By::Ours(_) | By::OursAllKept(_))
    }

    fn name(&self) -> String {
        let what = match self.produced {
            Produced::Zeros => "zeros",
            Produced::Lines => "lines",
        };
        let sink = |sink| match sink {
            Sink::File => "> file",
            Sink::Null => "> /dev/null",
            Sink::Cat => "| cat > file",
        };
        match self.by {
            By::Shell => format!("{what}, sh: cmd | cat > file"),
            By::ShellSynced => format!("{what}, sh: cmd | cat > file; sync -d file"),
            By::Ours(to) => format!("{what}, belljar {}", sink(to)),
            By::OursAllKept(to) => format!("{what}, belljar {}, all kept", sink(to)),
        }
    }

    fn script(&self, bytes: u64) -> String {
        match self.produced {
            Produced::Zeros => format!("head -c {bytes} /dev/zero"),
            Produced::Lines => format!("yes '{LINE}' | head -c {bytes}"),
        }
    }

    fn run(&self, bench: &RecordBench) -> Result<Ran> {
        let bytes = bench.sizes.output;
        let file = bench.scratch.path().join("throughput.out");
        let script = self.script(bytes);
        // Twice the stream, since half of the limit is the head's.
        let all = format!("limits.output={}", bytes * 2);
        let (mut command, sink) = match self.by {
            By::Shell | By::ShellSynced => {
                let quoted = file.display();
                let sync = match self.by {
                    By::ShellSynced => format!(" && sync -d '{quoted}'"),
                    _ => String::new(),
                };
                let mut command = bench.identity.command(Path::new("/bin/sh"));
                command.args(["-c", &format!("{script} | cat > '{quoted}'{sync}")]);
                return measure_shell(command, &file, bytes);
            }
            By::Ours(sink) => (bench.run(&[]), sink),
            By::OursAllKept(sink) => (bench.run(&["-c", &all]), sink),
        };
        command.args(["/bin/sh", "-c", &script]);
        pipeline::run(command, sink, &file, bytes)
    }
}

/// The shell makes the file itself; its own output is thrown into another.
fn measure_shell(command: Command, file: &Path, bytes: u64) -> Result<Ran> {
    let ran = pipeline::run(command, Sink::File, &file.with_extension("nothing"), 0)?;
    let length = fs::metadata(file).context("the shell made no file")?.len();
    anyhow::ensure!(length == bytes, "{bytes} bytes were to come, and {length} did");
    fs::remove_file(file).context("cannot remove the shell's file")?;
    Ok(ran)
}

fn forget_runs(home: &Home) -> Result<()> {
    for entry in fs::read_dir(home.runs()).context("cannot list the runs")? {
        let path = entry.context("cannot list the runs")?.path();
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
