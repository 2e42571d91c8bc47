//! What is run in the guest.

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
pub(crate) enum Kind {
    /// The exit code says it all.
    Command,
    /// A test executable, which also says how many tests it ran; none is a failure.
    Tests,
}

pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) kind: Kind,
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
            kind: Kind::Command,
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
    let modules = modules_in(&listed);
    ensure!(!modules.is_empty(), "the integration test `{SUITE}` has no modules");
    for module in modules {
        let words = [&format!("/guest/{SUITE}"), &format!("{module}::"), "--test-threads=1"];
        jobs.push(Job {
            name: format!("{SUITE}-{module}"),
            kind: Kind::Tests,
            run_as: As::Root,
            seconds: TEST_SECONDS,
            executable: Some(suite.clone()),
            words: words.map(str::to_owned).into(),
        });
    }
    Ok(jobs)
}

/// The modules at the top, from lines `module::test: test`.
fn modules_in(listed: &str) -> BTreeSet<&str> {
    let tests = listed.lines().filter(|line| line.ends_with(": test"));
    tests.filter_map(|line| line.split_once("::")).map(|(module, _)| module).collect()
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
    fn modules_are_read_from_the_list_of_tests() {
        let listed = "exit::codes::pass: test\nexit::other: test\nlimits::cpu: test\nx: bench\n";
        assert_eq!(modules_in(listed).into_iter().collect::<Vec<_>>(), ["exit", "limits"]);
    }
}
