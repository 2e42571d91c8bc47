//! Judges a command in a separate process, so that hostile text cannot crash the supervisor.
//!
//! A new executable, not a fork: the supervisor has threads, and a fork of a process with threads must not allocate.

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

use super::{RuleSet, RuleVerdict};

const ARGUMENT: &str = "__rules";
/// Judging takes milliseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Ends the process if the supervisor is gone.
const MAX_CPU_SECONDS: u64 = 3;
/// Far more than a parser needs for an honest script.
const MAX_MEMORY: u64 = 512 << 20;
const MAX_RESPONSE_BYTES: usize = 16 * 1024;
/// More than the kernel accepts as arguments.
const MAX_REQUEST_BYTES: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
struct JudgeRequest {
    policy: CommandPolicy,
    argv: Vec<OsText>,
}

/// `None`: no verdict in time, or the process failed.
pub(super) fn judge(policy: &CommandPolicy, argv: &[OsText]) -> Option<RuleVerdict> {
    let request = JudgeRequest { policy: policy.clone(), argv: argv.to_vec() };
    let request = serde_json::to_vec(&request).ok()?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("belljar")
        .arg(ARGUMENT)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let response = exchange(&mut child, &request);
    let _ = child.kill(); // unreaped child: the pid cannot be reused
    let _ = child.wait();
    serde_json::from_slice(&response?).ok()
}

fn exchange(child: &mut Child, request: &[u8]) -> Option<Vec<u8>> {
    // The child reads the whole request before it does anything else.
    child.stdin.take()?.write_all(request).ok()?;
    read_response(child.stdout.take()?)
}

fn read_response(mut from: ChildStdout) -> Option<Vec<u8>> {
    let until = Instant::now() + RESPONSE_TIMEOUT;
    let mut response = Vec::new();
    while response.len() <= MAX_RESPONSE_BYTES {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        match poll(&mut [PollFd::new(&from.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let mut some = [0; 4096];
        match from.read(&mut some) {
            Ok(0) => return Some(response),
            Ok(got) => response.extend_from_slice(&some[..got]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if Instant::now() >= until {
            return None;
        }
    }
    None
}

/// `Some` is the exit code: this process was started to judge one command.
pub fn run_rule_checker_if_requested(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    if args.next()? != ARGUMENT || args.next().is_some() {
        return None;
    }
    Some(i32::from(serve().is_none()))
}

fn serve() -> Option<()> {
    for (resource, most) in [(Resource::Cpu, MAX_CPU_SECONDS), (Resource::As, MAX_MEMORY)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).ok()?;
    }
    let mut request = Vec::new();
    std::io::stdin().take(MAX_REQUEST_BYTES).read_to_end(&mut request).ok()?;
    let JudgeRequest { policy, argv } = serde_json::from_slice(&request).ok()?;
    let verdict = RuleSet::compile(&policy).ok()?.judge(&argv);
    let response = serde_json::to_vec(&verdict).ok()?;
    std::io::stdout().write_all(&response).ok()
}
