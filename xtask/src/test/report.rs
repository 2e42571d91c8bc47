//! The list of steps and how each ended: what is printed last, and the exit code.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// Could not be done here, for a reason that is not the project's fault. Always shown.
    NotChecked(String),
}

struct Step {
    name: &'static str,
    took: Duration,
    outcome: Outcome,
}

pub(crate) struct Report {
    started: Instant,
    steps: Vec<Step>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), steps: Vec::new() }
    }

    /// Runs a step; an error is a failure of that step, and the next ones still run.
    pub(crate) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<Outcome>) {
        eprintln!("\n==> {name}");
        let started = Instant::now();
        let outcome = work().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let took = started.elapsed();
        match &outcome {
            Outcome::Passed => eprintln!("==> {name}: ok in {:.1} s", took.as_secs_f64()),
            Outcome::Failed(why) => {
                eprintln!("==> {name}: FAILED after {:.1} s: {why}", took.as_secs_f64());
            }
            Outcome::NotChecked(why) => eprintln!("==> {name}: NOT CHECKED: {why}"),
        }
        self.steps.push(Step { name, took, outcome });
    }

    pub(crate) fn failed(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.outcome, Outcome::Failed(_)))
    }

    /// Nothing failed, and nothing was left unchecked.
    pub(crate) fn all_passed(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.outcome, Outcome::Passed))
    }

    /// A line per step, then one line with the result.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::from("\nstep            seconds  result\n");
        for step in &self.steps {
            let result = match &step.outcome {
                Outcome::Passed => "ok".to_owned(),
                Outcome::Failed(why) => format!("FAILED: {why}"),
                Outcome::NotChecked(why) => format!("NOT CHECKED: {why}"),
            };
            let seconds = step.took.as_secs_f64();
            let _ = writeln!(text, "{:<15} {seconds:>7.1}  {result}", step.name);
        }
        let count = |wanted: fn(&Outcome) -> bool| {
            self.steps.iter().filter(|step| wanted(&step.outcome)).count()
        };
        let verdict = if self.failed() { "FAILED" } else { "ok" };
        let _ = writeln!(
            text,
            "xtask: {verdict}: {} steps passed, {} failed, {} not checked, {:.0} s",
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::NotChecked(_))),
            self.started.elapsed().as_secs_f64(),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_whole_and_later_steps_still_run() {
        let mut report = Report::new();
        report.step("first", || anyhow::bail!("broken"));
        report.step("second", || Ok(Outcome::Passed));
        assert!(report.failed());
        let summary = report.summary();
        assert!(summary.contains("FAILED: broken"), "{summary}");
        assert!(summary.contains("1 steps passed, 1 failed, 0 not checked"), "{summary}");
    }

    #[test]
    fn what_was_not_checked_is_named_and_is_no_failure() {
        let mut report = Report::new();
        report.step("guest", || Ok(Outcome::NotChecked("no such tool".into())));
        assert!(!report.failed() && !report.all_passed());
        assert!(report.summary().contains("NOT CHECKED: no such tool"));
    }
}
