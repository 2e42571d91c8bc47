//! Running other programs with a bound in time. Only a child of ours is ever signalled.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long a child that was asked to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How a bounded wait ended.
pub(crate) enum Ended {
    Exited(ExitStatus),
    /// It was still running at the limit, and was stopped.
    TimedOut,
}

/// Runs with this process's stdio.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let mut child = spawn(command)?;
    wait(&mut child, limit)
}

/// Runs, and makes anything but exit code 0 an error that names the command line.
pub(crate) fn check(command: &mut Command, limit: Duration) -> Result<()> {
    match run(command, limit)? {
        Ended::Exited(status) if status.success() => Ok(()),
        Ended::Exited(status) => bail!("`{}` ended with {status}", line(command)),
        Ended::TimedOut => {
            bail!("`{}` was stopped after {} s", line(command), limit.as_secs())
        }
    }
}

/// Runs to the end, which must be a good one, and returns how long it took. Not bounded: looking now and then whether it has
/// ended would be measured too.
pub(crate) fn timed(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    let took = begun.elapsed();
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(took)
}

/// Runs to the end and hands back stdout, which must be UTF-8. Not bounded: for commands that only
/// print what they know.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", line(command), output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed bytes that are not UTF-8", line(command)))
}

/// Whether it exits with 0 in time; what it prints is thrown away.
pub(crate) fn succeeds(command: &mut Command, limit: Duration) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    matches!(run(command, limit), Ok(Ended::Exited(status)) if status.success())
}

pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().with_context(|| format!("cannot start `{}`", line(command)))
}

/// Waits for the child; at the limit it gets SIGTERM, then SIGKILL.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Ended> {
    if let Some(status) = wait_until(child, Instant::now() + limit)? {
        return Ok(Ended::Exited(status));
    }
    stop(child)?;
    Ok(Ended::TimedOut)
}

/// Ends a child of ours, politely at first: nextest passes SIGTERM on to the tests.
pub(crate) fn stop(child: &mut Child) -> Result<()> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It is not reaped yet, so the number cannot belong to someone else; ESRCH is no failure.
        let _ = kill_process(pid, Signal::TERM);
    }
    if wait_until(child, Instant::now() + GRACE)?.is_none() {
        child.kill().context("cannot kill a child that outlived its limit")?;
        child.wait().context("cannot wait for a killed child")?;
    }
    Ok(())
}

fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        sleep(Duration::from_millis(20));
    }
}

/// The command line, for messages; the program without its directory.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_past_its_limit_is_stopped() {
        let mut child = spawn(Command::new("sleep").arg("60")).unwrap();
        let started = Instant::now();
        let ended = wait(&mut child, Duration::from_millis(100)).unwrap();
        assert!(matches!(ended, Ended::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_failure_names_the_command_line() {
        let error = check(Command::new("sh").args(["-c", "exit 3"]), GRACE).unwrap_err();
        assert!(error.to_string().contains("sh -c exit 3"), "{error}");
        check(Command::new("sh").args(["-c", "exit 0"]), GRACE).unwrap();
    }
}
