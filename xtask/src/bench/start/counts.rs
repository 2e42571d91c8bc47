//! What a start does, counted: system calls, syncs, page faults, context switches, processor time. The load of the
//! machine changes these little.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar_testkit::calls_in;
use serde_json::Value;

use super::StartBench;
use super::cases::Start;
use crate::bench::identity::Identity;
use crate::bench::outcome::{Part, figure};
use crate::{command, host};

const LIMIT: Duration = Duration::from_secs(120);
/// Traced starts are alike.
const TRACED: usize = 3;

/// Starts a command N times, and prints for each start what it and its descendants used: page faults, voluntary
/// context switches, seconds of processor time. Also of those that outlive the command: they come to us.
const USED: &str = "
import ctypes, json, os, resource, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
def used():
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [found.ru_minflt + found.ru_majflt, found.ru_nvcsw, found.ru_utime + found.ru_stime]
found = []
for _ in range(int(sys.argv[1])):
    time.sleep(0.03)
    before = used()
    code = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)[1])
    if code != 0:
        sys.exit(f'it ended with {code}')
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    found.append([after - was for after, was in zip(used(), before)])
print(json.dumps(found))
";

pub(super) fn measure(bench: &StartBench) -> Result<Part> {
    let rounds = bench.rounds.count;
    let title = format!("/bin/true in a new sandbox, all processes together, medians of {rounds}");
    let mut part = Part::new("counts", title);
    let strace = host::require_program("strace", "strace")?;
    let python = host::require_program("python3", "python3")?;
    for identity in &bench.identities {
        for start in Start::ALL {
            let name = start.name(identity);
            let Some((program, words)) = start.line(identity, &bench.belljar) else {
                part.missing(name, "it is not installed");
                continue;
            };
            let line = StartLine { identity, program, words };
            let traced = line.traced(&strace).with_context(|| name.clone())?;
            if start == Start::BelljarNoGroup {
                ensure!(traced.groups == 0, "{name}: it made {} control groups", traced.groups);
            }
            let [faults, switches, processor] =
                line.used(&python, rounds).with_context(|| name.clone())?;
            part.row(
                name,
                vec![
                    figure("system calls", traced.calls as f64, ""),
                    figure("syncs", traced.syncs as f64, ""),
                    figure("control groups", traced.groups as f64, ""),
                    figure("page faults", faults, ""),
                    figure("context switches", switches, ""),
                    figure("processor", processor * 1000.0, "ms"),
                ],
            );
        }
    }
    part.note("context switches: voluntary ones; a busy machine adds others");
    Ok(part)
}

struct StartLine<'a> {
    identity: &'a Identity,
    program: PathBuf,
    words: Vec<String>,
}

impl StartLine<'_> {
    /// Another program, with the whole command line as its last arguments.
    fn by(&self, wrapper: &Path, arguments: &[OsString]) -> Command {
        let mut command = self.identity.command(wrapper);
        command.args(arguments).arg(&self.program).args(&self.words).arg("/bin/true");
        command.stdin(Stdio::null());
        command
    }

    fn traced(&self, strace: &Path) -> Result<Traced> {
        let file = self.identity.workspace.join("trace");
        let mut found = Vec::new();
        for _ in 0..TRACED {
            let arguments = ["-f".into(), "-y".into(), "-o".into(), file.clone().into_os_string()];
            let mut command = self.by(strace, &arguments);
            command::check(command.stdout(Stdio::null()), LIMIT)?;
            found.push(Traced::in_file(&file)?);
            fs::remove_file(&file).context("cannot remove a trace")?;
        }
        found.sort_by_key(|one| one.calls);
        Ok(found[TRACED / 2])
    }

    /// Page faults, voluntary context switches, seconds of processor time.
    fn used(&self, python: &Path, rounds: usize) -> Result<[f64; 3]> {
        let arguments = ["-c".into(), USED.into(), rounds.to_string().into()];
        let text = command::read(&mut self.by(python, &arguments))?;
        let starts: Vec<Value> = serde_json::from_str(&text).context("no counts were printed")?;
        let median = |at: usize| -> Result<f64> {
            let mut values: Vec<f64> = starts.iter().filter_map(|one| one[at].as_f64()).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().context("a count is missing")
        };
        Ok([median(0)?, median(1)?, median(2)?])
    }
}

#[derive(Clone, Copy, Debug)]
struct Traced {
    calls: u64,
    syncs: u64,
    /// Made in a file system of control groups.
    groups: u64,
}

impl Traced {
    fn in_file(trace: &Path) -> Result<Self> {
        let text = fs::read(trace).context("cannot read a trace")?;
        let (calls, syncs) = calls_in(trace);
        Ok(Self { calls, syncs, groups: groups_in(&String::from_utf8_lossy(&text)) })
    }
}

/// Directories that were made in a file system of control groups.
fn groups_in(trace: &str) -> u64 {
    let is_group = |line: &&str| {
        let Some((name, arguments)) = line.split_once('(') else { return false };
        let name = name.rsplit(' ').next().unwrap_or_default();
        name.starts_with("mkdir") && arguments.contains("/sys/fs/cgroup")
    };
    trace.lines().filter(is_group).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_directories_among_control_groups() {
        let trace = "8 mkdirat(5</sys/fs/cgroup/pids>, \"x\", 0700) = 0\n7 mkdir(\"/tmp/a\", 0700) = 0\n\
                     7 mkdir(\"/sys/fs/cgroup/memory/b\", 0755 <unfinished ...>\n7 +++ exited with 0 +++\n";
        assert_eq!(groups_in(trace), 2);
    }
}
