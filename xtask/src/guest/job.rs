//! The jobs that run in the guest.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::artifacts::{Artifacts, TestExecutable};
use crate::command;

/// One job's limit: a hung test costs this much, and the rest still runs.
const TEST_SECONDS: u32 = 600;
const SMOKE_SECONDS: u32 = 120;

/// The output is looked at, so that an executable that does nothing does not pass.
const SMOKE_RUN: &str =
    r#"test "$(belljar run --no-config --workspace none -- echo sealed)" = sealed"#;
const SMOKE_DOCTOR: &str = "belljar doctor >/run/doctor; code=$?; cat /run/doctor
grep -q jail /run/doctor && exit $code";

#[derive(Clone, Copy)]
pub(crate) enum As {
    Root,
    /// The ordinary user.
    Tester,
}

/// How the output tells whether anything was tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// The exit code is the result.
    Command,
    /// A test executable, which also reports how many tests it ran; none is a failure.
    Tests,
}

pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) kind: JobKind,
    pub(crate) run_as: As,
    pub(crate) seconds: u32,
    /// Put into the guest as `/guest/NAME`, once for all jobs that name it.
    pub(crate) executable: Option<TestExecutable>,
    pub(crate) words: Vec<String>,
}

impl Job {
    pub(crate) fn command(name: &str, run_as: As, words: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            kind: JobKind::Command,
            run_as,
            seconds: SMOKE_SECONDS,
            executable: None,
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    /// The line of the guest's job list.
    pub(crate) fn line(&self) -> String {
        let user = match self.run_as {
            As::Root => "root",
            As::Tester => "tester",
        };
        let mut line = format!("job {} {} {user}", quote(&self.name), self.seconds);
        for word in &self.words {
            line.push(' ');
            line.push_str(&quote(word));
        }
        line.push('\n');
        line
    }
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The integration test whose modules run in the guest.
const SUITE: &str = "jail";
/// Each of its tests is a job: the attack catalogue takes minutes under emulation.
const LONG_MODULE: &str = "attacks";

/// A start as root and as an ordinary user, then each module of the jail's tests: a module that hangs
/// costs only its own results.
pub(crate) fn all(artifacts: &Artifacts) -> Result<Vec<Job>> {
    let mut jobs = vec![
        Job::command("run-as-root", As::Root, &["sh", "-c", SMOKE_RUN]),
        Job::command("run-as-user", As::Tester, &["sh", "-c", SMOKE_RUN]),
        Job::command("doctor", As::Root, &["sh", "-c", SMOKE_DOCTOR]),
    ];
    let suite = artifacts.tests.iter().find(|test| test.name == SUITE);
    let suite = suite.with_context(|| format!("cargo built no integration test `{SUITE}`"))?;
    let listed = command::read(Command::new(&suite.path).args(["--list", "--format=terse"]))?;
    let filters = filters_in(&listed);
    ensure!(!filters.is_empty(), "the integration test `{SUITE}` has no modules");
    for filter in filters {
        let words = [&format!("/guest/{SUITE}"), filter.as_str(), "--test-threads=1"];
        jobs.push(Job {
            name: format!("{SUITE}::{}", filter.trim_end_matches("::")),
            kind: JobKind::Tests,
            run_as: As::Root,
            seconds: TEST_SECONDS,
            executable: Some(suite.clone()),
            words: words.map(str::to_owned).into(),
        });
    }
    Ok(jobs)
}

/// What each job runs: a module at the top, or a test of the long one; from lines `module::test: test`.
fn filters_in(listed: &str) -> BTreeSet<String> {
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let filter = |test: &str| match test.split_once("::") {
        Some((LONG_MODULE, _)) => Some(test.to_owned()),
        Some((module, _)) => Some(format!("{module}::")),
        None => None,
    };
    tests.filter_map(filter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guest_unchanged() {
        let job = Job::command("x", As::Tester, &["echo", "it's", "$HOME"]);
        assert_eq!(job.line(), "job 'x' 120 tester 'echo' 'it'\\''s' '$HOME'\n");
    }

    #[test]
    fn jobs_are_modules_and_the_tests_of_the_long_one() {
        let listed =
            "exit::codes::pass: test\nexit::other: test\nattacks::as_root: test\nx: bench\n";
        let filters: Vec<String> = filters_in(listed).into_iter().collect();
        assert_eq!(filters, ["attacks::as_root", "exit::"]);
    }
}
