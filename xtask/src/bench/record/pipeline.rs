//! One command whose output ends in a file, outside or in a sandbox: how long, and how large the
//! launcher grew.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::bench::memory;
use crate::command;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How the bytes get into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    /// It is the command's standard output.
    File,
    /// `| cat > file`
    Cat,
    /// Nowhere: the record is the file.
    Null,
}

pub(crate) struct Ran {
    pub(crate) time: Duration,
    /// Of every process that took part: unlike the time, not changed by what else the machine does.
    pub(crate) processor: Duration,
    /// The most that was ever resident of the started process, which its children do not count in.
    pub(crate) peak_kib: u64,
}

/// The file must hold `expected` bytes then; it is removed again.
pub(crate) fn run(mut command: Command, sink: Sink, file: &Path, expected: u64) -> Result<Ran> {
    let out = File::create(file).with_context(|| format!("cannot make {}", file.display()))?;
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let before = of_children()?;
    let started = Instant::now();
    let (mut child, cat) = match sink {
        Sink::File => (command::spawn(command.stdout(out))?, None),
        Sink::Null => (command::spawn(command.stdout(Stdio::null()))?, None),
        Sink::Cat => {
            let mut child = command::spawn(command.stdout(Stdio::piped()))?;
            let pipe = child.stdout.take().context("there is no pipe")?;
            let cat = command::spawn(Command::new("cat").stdin(pipe).stdout(out))?;
            (child, Some(cat))
        }
    };
    let peak_kib = watch(&child)?;
    if let Some(mut cat) = cat {
        let status = cat.wait().context("cannot wait for cat")?;
        ensure!(status.success(), "cat ended with {status}");
    }
    let time = started.elapsed();
    let status = child.wait().context("cannot wait for a child")?;
    ensure!(status.success(), "`{}` ended with {status}", command::line(&command));
    let expected = if sink == Sink::Null { 0 } else { expected };
    let length =
        fs::metadata(file).with_context(|| format!("cannot look at {}", file.display()))?;
    let length = length.len();
    ensure!(length == expected, "{expected} bytes were to come, and {length} did");
    fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    Ok(Ran { time, processor: of_children()?.saturating_sub(before), peak_kib })
}

/// The processor time of all children that were waited for, and of theirs.
fn of_children() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read our own times")?;
    let ticks = children_in(&stat).context("the kernel tells no times of children")?;
    let each = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_millis(ticks * 1000 / each))
}

/// The fields 16 and 17; the second is a name in brackets that may hold anything.
fn children_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Until the child has ended; it is not reaped, so its number stays its own.
fn watch(child: &Child) -> Result<u64> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a bad process id")?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !ended.load(Ordering::Relaxed) {
                peak = peak.max(resident_peak(child.id()));
                thread::sleep(LOOK_EVERY);
            }
            peak
        });
        let waited = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        ended.store(true, Ordering::Relaxed);
        let peak = sampler.join().unwrap_or(0);
        waited.context("cannot wait for a child")?;
        Ok(peak)
    })
}

fn resident_peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    memory::kib(&status, "VmHWM:").unwrap_or(0) // a process that has ended has none
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn both_ways_into_a_file_are_followed_to_their_end() {
        let scratch = Scratch::new("pipeline-test").unwrap();
        let file = scratch.path().join("out");
        for sink in [Sink::File, Sink::Cat] {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 0.2; head -c 1000 /dev/zero"]);
            let ran = run(command, sink, &file, 1000).unwrap();
            assert!(ran.time >= Duration::from_millis(200));
            assert!(ran.peak_kib > 0);
            assert!(!file.exists());
        }
    }

    #[test]
    fn the_times_of_children_are_two_fields() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4 9 9 9 9 11 12 300 40 20 0 1 0";
        assert_eq!(children_in(stat), Some(340));
        assert_eq!(children_in("7 (a"), None);
        let before = of_children().unwrap();
        let busy = ["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"];
        assert!(Command::new("sh").args(busy).status().unwrap().success());
        assert!(of_children().unwrap() > before);
    }

    #[test]
    fn a_byte_too_few_is_an_error() {
        let scratch = Scratch::new("pipeline-short-test").unwrap();
        let mut command = Command::new("printf");
        command.arg("abc");
        let found = run(command, Sink::File, &scratch.path().join("out"), 4).err().unwrap();
        assert!(found.to_string().contains("and 3 did"), "{found}");
    }
}
