//! Interleaved rounds: every case once per round, each round beginning with another case, so that a
//! busy minute of the machine falls on all alike.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::peer::{Case, Then};
use crate::command::{self, Ended};

/// Starts before the measured ones; the first of belljar's also makes its home.
const WARM_UP: usize = 3;
const ONE_START_LIMIT: Duration = Duration::from_secs(60);
/// About as long as an event of the record.
const RECORD: [u8; 256] = [b'x'; 256];

pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) user: String,
    /// Or why it could not be measured.
    pub(crate) times: Result<Times, String>,
}

pub(crate) struct Times {
    sorted: Vec<Duration>,
}

impl Times {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self { sorted: times }
    }

    /// In milliseconds; the nearest rank.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    }
}

struct Running {
    case: Case,
    record: Option<File>,
    times: Vec<Duration>,
    failure: Option<String>,
}

pub(crate) fn measure(cases: Vec<Case>, rounds: usize) -> Result<Vec<Measured>> {
    let mut running = Vec::new();
    for case in cases {
        let record = match &case.then {
            Then::Nothing => None,
            Then::TwoSyncs(directory) => Some(open_record(directory)?),
        };
        let failure = warm_up(&case).err().map(|error| format!("{error:#}"));
        if let Some(why) = &failure {
            eprintln!("{} as {}: not measured: {why}", case.name, case.identity.name);
        }
        running.push(Running { case, record, times: Vec::with_capacity(rounds), failure });
    }
    let count = running.len();
    eprintln!("{rounds} rounds of {count} cases");
    for round in 0..rounds {
        for turn in 0..count {
            let one = &mut running[(round + turn) % count];
            if one.failure.is_some() {
                continue;
            }
            match one.start_once() {
                Ok(time) => one.times.push(time),
                Err(error) => one.failure = Some(format!("round {round}: {error:#}")),
            }
        }
    }
    Ok(running.into_iter().map(Running::into_measured).collect())
}

impl Running {
    fn start_once(&mut self) -> Result<Duration> {
        let mut command = self.case.command();
        command.arg("/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        // No time limit here: polling would be measured too. The warm-up showed that it ends.
        let status = command.status().context("cannot start it")?;
        if let Some(record) = &mut self.record {
            for _ in 0..2 {
                record.write_all(&RECORD).context("cannot write the peer's record")?;
                record.sync_data().context("cannot sync the peer's record")?;
            }
        }
        let time = started.elapsed();
        ensure!(status.success(), "it ended with {status}");
        Ok(time)
    }

    fn into_measured(self) -> Measured {
        let times = match self.failure {
            Some(why) => Err(why),
            None => Ok(Times::new(self.times)),
        };
        Measured { name: self.case.name, user: self.case.identity.name, times }
    }
}

impl Case {
    fn command(&self) -> Command {
        let mut command = self.identity.command(&self.program);
        command.args(&self.words);
        command
    }
}

/// Also shows that the command really runs: what does nothing would be the fastest.
fn warm_up(case: &Case) -> Result<()> {
    for _ in 0..WARM_UP {
        let mut command = case.command();
        command.args(["/bin/echo", "sealed"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command::spawn(&mut command)?;
        let ended = command::wait(&mut child, ONE_START_LIMIT)?;
        let output = child.wait_with_output().context("cannot read what it printed")?;
        let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        match ended {
            Ended::TimedOut => bail!("it did not end within {} s", ONE_START_LIMIT.as_secs()),
            Ended::Exited(status) => ensure!(status.success(), "it ended with {status}: {errors}"),
        }
        ensure!(output.stdout == b"sealed\n", "the command inside did not run: {errors}");
    }
    Ok(())
}

fn open_record(directory: &Path) -> Result<File> {
    // Beside the home and on the same disk: belljar takes no directory that holds other files.
    let path = directory.with_extension("peer-record");
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let times = Times::new((1..=100).rev().map(Duration::from_millis).collect());
        assert!((times.percentile(50) - 50.0).abs() < 1e-9);
        assert!((times.percentile(10) - 10.0).abs() < 1e-9);
        let one = Times::new(vec![Duration::from_millis(7)]);
        assert!((one.percentile(10) - 7.0).abs() < 1e-9);
    }
}
