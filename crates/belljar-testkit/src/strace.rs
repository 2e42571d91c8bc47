//! Injects faults at system calls with strace.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Call, Lab};

/// Which processes' system calls are counted and hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceScope {
    /// Only the launcher's, in its first thread.
    Launcher,
    /// Also those of every child process. Each is counted separately, and the first to reach
    /// the number is hit, whichever it is.
    AllProcesses,
}

/// What happens at the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    /// It fails with this error and has no effect.
    Fails(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub call: String,
    pub number: u32,
    pub scope: TraceScope,
}

impl Point {
    /// Starts the command with a fault at this point.
    pub fn hit<'a>(&self, call: Call<'a>, fault: Fault) -> Call<'a> {
        through_strace(call, self.scope, &["-o", "/dev/null", "-e", &self.inject(fault)])
    }

    /// As strace's option `-e` has it.
    pub fn inject(&self, fault: Fault) -> String {
        let Self { call, number, .. } = self;
        let what = match fault {
            Fault::Kill => "signal=KILL".to_owned(),
            Fault::Fails(error) => format!("error={error}"),
        };
        format!("inject={call}:{what}:when={number}")
    }
}

fn through_strace<'a>(call: Call<'a>, scope: TraceScope, options: &[&str]) -> Call<'a> {
    let mut wrapper = vec!["strace", "-qq"];
    if scope == TraceScope::AllProcesses {
        wrapper.push("-f");
    }
    wrapper.extend(options);
    call.through(&wrapper)
}

/// Starts the command with all its calls, and those of every process that it makes, written to a file.
pub fn traced<'a>(call: Call<'a>, file: &Path) -> Call<'a> {
    let options = ["-e", "signal=none", "-o", file.to_str().unwrap()];
    through_strace(call, TraceScope::AllProcesses, &options)
}

/// How often each of the calls is made by the process that makes it most often.
pub fn count_calls(
    lab: &Lab,
    call: Call<'_>,
    scope: TraceScope,
    names: &[&str],
) -> BTreeMap<String, u32> {
    let file = lab.make_file("tmp/calls", "");
    let trace = format!("trace={}", names.join(","));
    let options = ["-e", &trace, "-e", "signal=none", "-o", file.to_str().unwrap()];
    through_strace(call, scope, &options).done().expect(0);
    let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
    let mut by_process: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for line in text.lines() {
        let (process, rest) = match scope {
            TraceScope::Launcher => ("", line),
            TraceScope::AllProcesses => line.split_once(' ').unwrap_or(("", line)),
        };
        // "<... openat resumed>" is the end of a call that was counted at its beginning.
        if let Some((name, _)) = rest.trim_start().split_once('(')
            && names.contains(&name)
        {
            *by_process.entry((process, name)).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((_, name), count) in by_process {
        let highest = most.entry(name.to_owned()).or_insert(0);
        *highest = count.max(*highest);
    }
    most
}
