//! How much memory the sandbox's PID 1 keeps resident while a run is on.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::identity::Identity;
use crate::command;
use crate::processes::{descendants, name};

const APPEAR_LIMIT: Duration = Duration::from_secs(10);
const RUN_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Memory {
    pub(crate) user: String,
    pub(crate) resident_kib: u64,
    /// Pages shared with others counted in parts; not every user may read it.
    pub(crate) proportional_kib: Option<u64>,
}

pub(crate) fn of_pid1(identity: &Identity, belljar: &Path) -> Result<Memory> {
    let mut launcher = identity.command(belljar);
    launcher.args(["run", "--no-config", "-q", "--", "/bin/sleep", "3"]);
    launcher.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command::spawn(&mut launcher)?;
    let found = measure(identity, &mut child);
    command::wait(&mut child, RUN_LIMIT)?;
    found
}

fn measure(identity: &Identity, launcher: &mut Child) -> Result<Memory> {
    let deadline = Instant::now() + APPEAR_LIMIT;
    while Instant::now() < deadline {
        let family = descendants(launcher.id())?;
        let init = family.iter().find(|pid| is_init(**pid));
        let command_runs = family.iter().any(|pid| name(*pid).as_deref() == Some("sleep"));
        if let (Some(init), true) = (init, command_runs) {
            // Let it come to rest.
            sleep(Duration::from_millis(300));
            return read(identity, *init);
        }
        if let Some(status) = launcher.try_wait().context("cannot wait for the launcher")? {
            bail!("the launcher ended with {status} before its PID 1 was seen");
        }
        sleep(Duration::from_millis(20));
    }
    bail!("no `belljar __init` with its command appeared below the launcher")
}

fn read(identity: &Identity, pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .context("cannot read the status of PID 1")?;
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    Ok(Memory {
        user: identity.name.clone(),
        resident_kib: kib(&status, "VmRSS:").context("PID 1's status has no VmRSS")?,
        proportional_kib: rollup.and_then(|text| kib(&text, "Pss:")),
    })
}

pub(crate) fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn is_init(pid: u32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|word| word == b"__init")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_kib() {
        assert_eq!(kib("Name:\tx\nVmRSS:\t    1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(kib("Name:\tx\n", "VmRSS:"), None);
    }
}
