//! Interleaved rounds: every case once per round, each round beginning with another case, so that a
//! busy minute of the machine falls on all alike.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::identity::Identity;
use super::outcome::{Part, latency};
use crate::command::{self, Ended};

/// Before the measured rounds; the first start of belljar's also makes its home.
const WARM_UP: usize = 3;
const ONE_START_LIMIT: Duration = Duration::from_secs(60);

/// How often, and how long the machine rests before each measurement. What was just done makes the same
/// work cheaper: moving a process into a control group takes 20 µs directly after another one, and 10 ms
/// after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    pub(crate) count: usize,
    pub(crate) pause: Duration,
}

/// The pause before each start that the targets are defined with.
pub(crate) const START_PAUSE: Duration = Duration::from_millis(30);

impl Rounds {
    pub(crate) fn with_pauses(count: usize) -> Self {
        Self { count, pause: START_PAUSE }
    }

    pub(crate) fn back_to_back(count: usize) -> Self {
        Self { count, pause: Duration::ZERO }
    }
}

/// Something that is done again and again, and takes its own time.
pub(crate) struct Case<'a> {
    name: String,
    /// Shows that it really does what it is measured for: what does nothing would be the fastest.
    check: Box<dyn FnMut() -> Result<()> + 'a>,
    once: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

impl<'a> Case<'a> {
    /// `/bin/true` behind these words, which begin with the program that starts a sandbox.
    pub(crate) fn sandbox(
        name: impl Into<String>,
        identity: &Identity,
        program: impl Into<PathBuf>,
        words: Vec<String>,
    ) -> Self {
        let (identity, program) = (identity.clone(), program.into());
        let sandboxed = move |command: &[&str]| {
            let mut whole = identity.command(&program);
            whole.args(&words).args(command);
            whole
        };
        let timed = sandboxed.clone();
        Self {
            name: name.into(),
            check: Box::new(move || prints_sealed(sandboxed(&["/bin/echo", "sealed"]))),
            once: Box::new(move || time_of(&mut timed(&["/bin/true"]))),
        }
    }

    /// A command that must end well.
    pub(crate) fn command(name: impl Into<String>, mut make: impl FnMut() -> Command + 'a) -> Self {
        Self::timed(name, move || time_of(&mut make()))
    }

    /// Work that takes its time itself.
    pub(crate) fn timed(
        name: impl Into<String>,
        once: impl FnMut() -> Result<Duration> + 'a,
    ) -> Self {
        Self { name: name.into(), check: Box::new(|| Ok(())), once: Box::new(once) }
    }

    fn warm_up(&mut self) -> Result<()> {
        for _ in 0..WARM_UP {
            (self.check)()?;
            (self.once)()?;
        }
        Ok(())
    }
}

/// The times of every case, or why it could not be measured.
pub(crate) struct Found(Vec<(String, Result<Times, String>)>);

pub(crate) fn measure<'a>(cases: Vec<Case<'a>>, rounds: Rounds) -> Found {
    struct Running<'a> {
        case: Case<'a>,
        times: Vec<Duration>,
        failure: Option<String>,
    }
    let warm = |mut case: Case<'a>| {
        let failure = case.warm_up().err().map(|error| format!("{error:#}"));
        if let Some(why) = &failure {
            eprintln!("{}: not measured: {why}", case.name);
        }
        Running { case, times: Vec::with_capacity(rounds.count), failure }
    };
    let mut running: Vec<Running<'_>> = cases.into_iter().map(warm).collect();
    let count = running.len();
    eprintln!("{} rounds of {count} cases", rounds.count);
    for round in 0..rounds.count {
        for turn in 0..count {
            let one = &mut running[(round + turn) % count];
            if one.failure.is_some() {
                continue;
            }
            sleep(rounds.pause);
            match (one.case.once)() {
                Ok(time) => one.times.push(time),
                Err(error) => one.failure = Some(format!("round {round}: {error:#}")),
            }
        }
    }
    let found = |one: Running<'_>| match one.failure {
        Some(why) => (one.case.name, Err(why)),
        None => (one.case.name, Ok(Times::new(one.times))),
    };
    Found(running.into_iter().map(found).collect())
}

impl Found {
    /// A row for each case.
    pub(crate) fn add_rows(&self, part: &mut Part) {
        for (name, times) in &self.0 {
            match times {
                Ok(times) => part.row(name, latency(times)),
                Err(why) => part.missing(name, why),
            }
        }
    }

    /// In milliseconds; nothing if it could not be measured or is not there.
    pub(crate) fn p50(&self, name: &str) -> Option<f64> {
        self.times(name).ok().map(|times| times.percentile(50))
    }

    pub(crate) fn times(&self, name: &str) -> Result<&Times> {
        match self.0.iter().find(|(one, _)| one == name) {
            Some((_, Ok(times))) => Ok(times),
            Some((_, Err(why))) => Err(anyhow!("{name}: {why}")),
            None => Err(anyhow!("{name} was not measured")),
        }
    }

    /// How many times the p50 of the second one the p50 of the first one is.
    pub(crate) fn ratio(&self, name: &str, to: &str) -> Option<f64> {
        Some(self.p50(name)? / self.p50(to)?)
    }
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

/// Without a time limit: looking now and then whether it has ended would be measured too. A warm-up has shown that it
/// ends.
fn time_of(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command::timed(command)
}

fn prints_sealed(mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command::spawn(&mut command)?;
    let ended = command::wait(&mut child, ONE_START_LIMIT)?;
    let output = child.wait_with_output().context("cannot read what it printed")?;
    // The first line: some programs print their whole help after it.
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = errors.trim().lines().next().unwrap_or_default();
    match ended {
        Ended::TimedOut => bail!("it did not end within {} s", ONE_START_LIMIT.as_secs()),
        Ended::Exited(status) => ensure!(status.success(), "it ended with {status}: {errors}"),
    }
    ensure!(output.stdout == b"sealed\n", "the command inside did not run: {errors}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let times = Times::new((1..=100).rev().map(Duration::from_millis).collect());
        assert!((times.percentile(50) - 50.0).abs() < 1e-9);
        assert!((times.percentile(10) - 10.0).abs() < 1e-9);
        let one = Times::new(vec![Duration::from_millis(7)]);
        assert!((one.percentile(10) - 7.0).abs() < 1e-9);
    }

    #[test]
    fn each_round_begins_with_another_case() {
        let order = RefCell::new(String::new());
        let case = |name: &'static str| {
            let order = &order;
            Case::timed(name, move || {
                order.borrow_mut().push_str(name);
                Ok(Duration::from_millis(1))
            })
        };
        let found = measure(vec![case("a"), case("b")], Rounds::back_to_back(3));
        assert!(order.borrow().ends_with("abbaab"), "{}", order.borrow());
        assert!((found.ratio("a", "b").unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_case_that_fails_has_no_times_and_stops_no_other() {
        let cases = vec![
            Case::command("bad", || Command::new("false")),
            Case::command("good", || Command::new("true")),
        ];
        let found = measure(cases, Rounds::back_to_back(2));
        assert!(found.times("bad").err().unwrap().to_string().contains("false"));
        assert!(found.p50("good").is_some() && found.ratio("good", "bad").is_none());
    }

    #[test]
    fn a_start_that_runs_nothing_is_not_measured() {
        let scratch = crate::scratch::Scratch::new("rounds-test").unwrap();
        let identity = Identity::ourselves(scratch.path()).unwrap();
        let start = |program| Case::sandbox(program, &identity, program, Vec::new());
        let found = measure(vec![start("true"), start("env")], Rounds::back_to_back(1));
        let why = found.times("true").err().unwrap().to_string();
        assert!(why.contains("did not run"), "{why}");
        assert!(found.p50("env").is_some());
    }
}
