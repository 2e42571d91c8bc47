//! Runs the virtual machine and follows its console, until it ends or its time is over.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::job::Job;
use super::verdict::{ConsoleLine, Verdict, judge, parse};
use crate::{command, host};

/// Translated code, because a paravirtual `/dev/kvm` need not boot a stock kernel; one thread, so
/// that timing differs as little as possible between machines.
const MACHINE: [&str; 17] = [
    "-M",
    "q35",
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "max",
    "-m",
    "1024",
    "-smp",
    "1",
    "-nodefaults",
    "-no-user-config",
    "-nographic",
    "-no-reboot",
    "-serial",
    "stdio",
    "-append",
];
/// Only a panic is worth a line of the kernel among the results.
const KERNEL_LINE: &str = "console=ttyS0 loglevel=1 edd=off reboot=t panic=-1 mitigations=off";

pub(crate) struct Booted {
    pub(crate) results: Vec<(String, Verdict)>,
    pub(crate) ending: Ending,
    pub(crate) took: Duration,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It ran every job and switched itself off.
    Done,
    /// It went off before that: a panic, or no disk.
    Early,
    /// It was still running at the limit, and was killed.
    Killed,
}

pub(crate) struct Files<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) disk: &'a Path,
    pub(crate) log: &'a Path,
}

pub(crate) fn boot(files: &Files<'_>, jobs: &[Job], limit: Duration) -> Result<Booted> {
    let started = Instant::now();
    let mut child = start(files)?;
    let output = child.stdout.take().context("the virtual machine has no stdout")?;
    let lines = read_lines(output);
    let log =
        File::create(files.log).with_context(|| format!("cannot make {}", files.log.display()))?;
    let mut console =
        Console { jobs, log, running: None, output: Vec::new(), results: Vec::new(), done: false };
    let followed = console.follow(&lines, started + limit);
    // Whatever happened, the machine is ours and must not outlive this function.
    let in_time = matches!(followed, Ok(InTime::Yes));
    if in_time {
        command::wait(&mut child, Duration::from_secs(20))?;
    } else {
        command::stop(&mut child)?;
    }
    followed?;
    let ending = match (in_time, console.done) {
        (false, _) => Ending::Killed,
        (true, true) => Ending::Done,
        (true, false) => Ending::Early,
    };
    Ok(Booted { results: console.results, ending, took: started.elapsed() })
}

fn start(files: &Files<'_>) -> Result<Child> {
    let qemu = host::require_program("qemu-system-x86_64", "qemu-system-x86")?;
    // Even a killed xtask leaves no machine behind.
    let mut command = match host::find_program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(qemu);
            command
        }
        None => Command::new(qemu),
    };
    command.args(MACHINE).arg(KERNEL_LINE);
    command.arg("-kernel").arg(files.kernel).arg("-initrd").arg(files.initramfs);
    let disk = files.disk.to_str().context("the disk's path is not UTF-8")?;
    // A comma in a value is written twice. The disk is thrown away: no need to sync it.
    let disk = disk.replace(',', ",,");
    command.args(["-drive", &format!("file={disk},format=raw,if=none,id=root,cache=unsafe")]);
    command.args(["-device", "virtio-blk-pci,drive=root"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command::spawn(&mut command)
}

/// A thread reads, so that the wait for a line can have a limit.
fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });
    receiver
}

enum InTime {
    Yes,
    No,
}

struct Console<'a> {
    jobs: &'a [Job],
    log: File,
    running: Option<String>,
    /// What came since the job began.
    output: Vec<String>,
    results: Vec<(String, Verdict)>,
    done: bool,
}

impl Console<'_> {
    fn follow(&mut self, lines: &Receiver<String>, deadline: Instant) -> Result<InTime> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) => self.take_line(line)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(InTime::Yes),
                Err(RecvTimeoutError::Timeout) => {
                    self.show_output();
                    let job = self.running.as_deref().unwrap_or("none: it did not come that far");
                    eprintln!("    the guest's time is over; running job: {job}");
                    return Ok(InTime::No);
                }
            }
        }
    }

    fn take_line(&mut self, line: String) -> Result<()> {
        writeln!(self.log, "{line}").context("cannot write the guest's log")?;
        match parse(&line) {
            ConsoleLine::Began(name) => {
                self.running = Some(name);
                self.output.clear();
            }
            ConsoleLine::Note(note) => eprintln!("    guest: {note}"),
            ConsoleLine::Done => self.done = true,
            ConsoleLine::Output => self.output.push(line),
            ConsoleLine::Ended { name, passed, detail } => self.ended(name, passed, &detail),
        }
        Ok(())
    }

    fn ended(&mut self, name: String, passed: bool, detail: &str) {
        let verdict = match self.jobs.iter().find(|job| job.name == name) {
            Some(job) => judge(job, passed, detail, &self.output),
            None => Verdict::Failed("no such job was given to the guest".into()),
        };
        match &verdict {
            Verdict::Passed(None) => eprintln!("    {name}: ok"),
            Verdict::Passed(Some(counts)) => {
                eprintln!("    {name}: ok, {} tests, {} ignored", counts.passed, counts.ignored);
            }
            Verdict::Failed(why) => {
                self.show_output();
                eprintln!("    {name}: FAILED: {why}");
            }
        }
        self.running = None;
        self.output.clear();
        self.results.push((name, verdict));
    }

    fn show_output(&self) {
        for line in &self.output {
            eprintln!("    | {line}");
        }
    }
}
