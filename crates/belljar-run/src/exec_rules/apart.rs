//! A process of its own for what reads hostile text: whatever happens to it, the one who asked lives.
//!
//! Not a fork: a supervisor has threads as soon as its run is a few seconds old, and what is forked from one with
//! threads can do next to nothing.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_spec::{CommandPolicy, OsText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::{Rules, Verdict};

const ARGUMENT: &str = "__rules";
/// It is done in milliseconds.
const WITHIN: Duration = Duration::from_secs(2);
/// Seconds of a processor, should nobody be there to end it.
const PROCESSOR: u64 = 3;
/// A parser that needs more is being led around.
const MEMORY: u64 = 512 << 20;
const LONGEST: usize = 16 * 1024;
/// Of a question; no kernel takes longer arguments.
const LONGEST_QUESTION: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
struct Question {
    policy: CommandPolicy,
    argv: Vec<OsText>,
}

/// `None`: it did not come to an end.
pub(super) fn judged(policy: &CommandPolicy, argv: &[OsText]) -> Option<Verdict> {
    let question = Question { policy: policy.clone(), argv: argv.to_vec() };
    let question = serde_json::to_vec(&question).ok()?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("belljar")
        .arg(ARGUMENT)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let heard = ask(&mut child, &question);
    let _ = child.kill(); // our own child, unreaped: the number is nobody else's
    let _ = child.wait();
    serde_json::from_slice(&heard?).ok()
}

fn ask(child: &mut Child, question: &[u8]) -> Option<Vec<u8>> {
    // It reads all of it before it does anything else.
    child.stdin.take()?.write_all(question).ok()?;
    hear(child.stdout.take()?)
}

fn hear(mut from: ChildStdout) -> Option<Vec<u8>> {
    let until = Instant::now() + WITHIN;
    let mut heard = Vec::new();
    while heard.len() <= LONGEST {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        match poll(&mut [PollFd::new(&from.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let mut some = [0; 4096];
        match from.read(&mut some) {
            Ok(0) => return Some(heard),
            Ok(got) => heard.extend_from_slice(&some[..got]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if Instant::now() >= until {
            return None;
        }
    }
    None
}

/// `Some` is the code to exit with: this process is there to judge one command.
pub fn judge_if_asked(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    if args.next()? != ARGUMENT || args.next().is_some() {
        return None;
    }
    Some(i32::from(answer().is_none()))
}

fn answer() -> Option<()> {
    for (resource, most) in [(Resource::Cpu, PROCESSOR), (Resource::As, MEMORY)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).ok()?;
    }
    let mut question = Vec::new();
    std::io::stdin().take(LONGEST_QUESTION).read_to_end(&mut question).ok()?;
    let Question { policy, argv } = serde_json::from_slice(&question).ok()?;
    let verdict = Rules::compile(&policy).ok()?.judge(&argv);
    let said = serde_json::to_vec(&verdict).ok()?;
    std::io::stdout().write_all(&said).ok()
}
