//! A loop whose agent reports that it has started and waits for a signal to go on: so that loops and what they are
//! compared with take turns, and none works while another is measured.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::LoopBench;
use super::work::Work;
use crate::command;

/// For one iteration of the largest kind on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Inside.
const GATE: &str = "/gate";
/// The directory and its pipes count as changed with what the agent changes.
pub(super) const GATE_CHANGES: usize = 3;

/// Two pipes that the agent finds at [`GATE`].
struct Gate {
    path: PathBuf,
    here: File,
    go: File,
}

impl Gate {
    fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot make {}", path.display()))?;
        let pipe = |name: &str| {
            let path = path.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .map_err(std::io::Error::from)
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o666)))
                // Held at both ends, so neither side ever waits for the other to open it.
                .and_then(|()| {
                    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
                    OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(&path)
                })
                .with_context(|| format!("cannot make {}", path.display()))
        };
        let (here, go) = (pipe("here")?, pipe("go")?);
        Ok(Self { path, here, go })
    }

    /// When the first byte of the agent came.
    fn arrival(&self) -> Result<Instant> {
        let mut fds = [PollFd::new(&self.here, PollFlags::IN)];
        let limit = Timespec::try_from(LIMIT).context("a limit that is none")?;
        let count = poll(&mut fds, Some(&limit)).context("cannot wait for the agent")?;
        let came = Instant::now();
        ensure!(count > 0, "the agent did not start within {} s", LIMIT.as_secs());
        let read = (&self.here).read(&mut [0; 64]).context("cannot read from the agent")?;
        ensure!(read == 2, "the agent came {read} bytes at once");
        Ok(came)
    }
}

pub(super) struct Paced<'a> {
    bench: &'a LoopBench<'a>,
    gate: Gate,
    pub(super) run: String,
    /// From `belljar run` to the first byte of the agent.
    pub(super) start: Duration,
}

impl<'a> Paced<'a> {
    /// The agent of the first iteration is there then.
    pub(super) fn start(
        bench: &'a LoopBench<'a>,
        name: &str,
        tree: &Path,
        work: Work,
        iterations: usize,
    ) -> Result<Self> {
        let name = format!("{name}-{}", bench.identity.name);
        let gate = Gate::new(bench.scratch.join(format!("gate-{name}")))?;
        let manifest = bench.scratch.join(format!("{name}.toml"));
        fs::write(&manifest, manifest_with(work, iterations))
            .with_context(|| format!("cannot write {}", manifest.display()))?;
        let mut command = bench.identity.command(bench.belljar);
        command.args(["run", "-d", "-q", "--name", &name, "--manifest"]).arg(manifest);
        command.args(["--workspace", &format!("{}:overlay", tree.display())]);
        command.args(["-v", &format!("{}:{GATE}:rw", gate.path.display())]);
        // A pipe in a tree that is not writable is another one inside.
        command.args(["--waive", "fs.sockets=the agent waits at a pipe"]);
        let begun = Instant::now();
        let run = id_of(&mut command)?;
        let mut paced = Self { bench, gate, run, start: Duration::ZERO };
        paced.start = paced.gate.arrival()? - begun;
        Ok(paced)
    }

    /// One iteration, until the agent of the next one is there.
    pub(super) fn go_on(&self, number: usize) -> Result<()> {
        rustix::fs::sync(); // what others left to be written is not this one's
        writeln!(&self.gate.go, "{number}").context("cannot tell the agent to go on")?;
        self.gate.arrival()?;
        Ok(())
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.bench.identity.home.join("runs").join(&self.run)
    }

    pub(super) fn stop(&self) -> Result<()> {
        stop(self.bench, &self.run)
    }

    /// A new run that begins with the last checkpoint of this one, stopped again when the agent is there. From `belljar
    /// resume` to the first byte of the agent.
    pub(super) fn resume(&self) -> Result<Duration> {
        let mut command = self.bench.identity.command(self.bench.belljar);
        command.args(["resume", "-d", "-q", &self.run]);
        rustix::fs::sync();
        let begun = Instant::now();
        let run = id_of(&mut command)?;
        let came = self.gate.arrival();
        stop(self.bench, &run)?;
        Ok(came? - begun)
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        let _ = self.stop(); // it may have ended already
    }
}

fn stop(bench: &LoopBench<'_>, run: &str) -> Result<()> {
    let mut stop = bench.identity.command(bench.belljar);
    stop.args(["stop", "-q", "-t", "0", run]).stderr(Stdio::null());
    command::check(&mut stop, LIMIT)
}

/// What a detached run prints.
fn id_of(command: &mut Command) -> Result<String> {
    let id = command::read(command)?.trim().to_owned();
    ensure!(!id.is_empty() && !id.contains(char::is_whitespace), "`{id}` is no run's id");
    Ok(id)
}

fn manifest_with(work: Work, iterations: usize) -> String {
    let script = format!("echo x > {GATE}/here && read n < {GATE}/go || exit 1; {}", work.script());
    // A string of JSON is one of TOML too.
    let script = serde_json::Value::from(script);
    format!(
        "[agent]\nkind = \"command\"\nprompt = \"Work.\"\ncommand = [\"sh\", \"-c\", {script}]\n\
         [loop]\nmax_iterations = {iterations}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_agent_says_that_it_is_there_and_waits() {
        let scratch = Scratch::new("gate-test").unwrap();
        let gate = Gate::new(scratch.path().join("gate")).unwrap();
        let script = "echo x > here && read n < go && test \"$n\" = 7";
        let mut agent = Command::new("sh");
        agent.args(["-c", script]).current_dir(&gate.path);
        let mut agent = command::spawn(&mut agent).unwrap();
        gate.arrival().unwrap();
        assert!(agent.try_wait().unwrap().is_none());
        writeln!(&gate.go, "7").unwrap();
        assert!(agent.wait().unwrap().success());
    }
}
