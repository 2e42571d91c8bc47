//! Where a start of belljar's spends its time, as `belljar run --timings` tells it.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::StartBench;
use super::cases::run_words;
use crate::bench::identity::Identity;
use crate::bench::outcome::{Part, figure};
use crate::bench::rounds::Times;

pub(super) fn measure(bench: &StartBench) -> Result<Part> {
    let title = format!("`belljar run --timings -- /bin/true`, {} times", bench.rounds.count);
    let mut part = Part::new("phases", title);
    for identity in &bench.identities {
        for (phase, times) in of_user(bench, identity)? {
            let percentiles =
                [("p50", 50), ("p10", 10)].map(|(name, percent)| (name, times.percentile(percent)));
            let figures = percentiles.map(|(name, value)| figure(name, value, "ms"));
            part.row(format!("{phase}, {}", identity.name), figures.into());
        }
    }
    part.note("default limits; from the start of the launcher's `main` to the end of the record");
    Ok(part)
}

fn of_user(bench: &StartBench, identity: &Identity) -> Result<Vec<(String, Times)>> {
    let mut all: Vec<(String, Vec<Duration>)> = Vec::new();
    for _ in 0..bench.rounds.count {
        sleep(bench.rounds.pause);
        let mut command = identity.command(&bench.belljar);
        command.args(run_words(&["--timings"])).arg("/bin/true");
        let output = command.stdin(Stdio::null()).output().context("cannot start belljar")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "belljar ended with {}: {text}", output.status);
        let phases = phases_in(&text);
        ensure!(!phases.is_empty(), "`run --timings` printed no phases: {text}");
        for (phase, time) in phases {
            match all.iter_mut().find(|(name, _)| *name == phase) {
                Some((_, times)) => times.push(time),
                None => all.push((phase, vec![time])),
            }
        }
    }
    Ok(all.into_iter().map(|(phase, times)| (phase, Times::new(times))).collect())
}

/// The lines `NAME N ms …`.
fn phases_in(text: &str) -> Vec<(String, Duration)> {
    let phase = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, number) = (words.next()?, words.next()?.parse::<f64>().ok()?);
        let is_name = name.chars().all(char::is_alphabetic);
        let is_time = words.next() == Some("ms") && number.is_finite() && number >= 0.0;
        (is_name && is_time).then(|| (name.to_owned(), Duration::from_secs_f64(number / 1000.0)))
    };
    text.lines().filter_map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_the_lines_with_milliseconds() {
        let text = "warning: 3 ms\nplan   1.50 ms  plan made\ntotal 20.00 ms\n";
        let found = phases_in(text);
        let named = |name: &str, us| (name.to_owned(), Duration::from_micros(us));
        assert_eq!(found, [named("plan", 1500), named("total", 20_000)]);
    }
}
