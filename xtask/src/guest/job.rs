//! What is run in the guest.

use std::path::PathBuf;

use crate::artifacts::Artifacts;

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
    /// Put into the guest as `/guest/<file name>`.
    pub(crate) executable: Option<PathBuf>,
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

/// A start as root and as an ordinary user, then every test of the command named `jail_*`.
pub(crate) fn all(artifacts: &Artifacts) -> Vec<Job> {
    let mut jobs = vec![
        Job::command("run-as-root", As::Root, &["sh", "-c", SMOKE_RUN]),
        Job::command("run-as-user", As::Tester, &["sh", "-c", SMOKE_RUN]),
        Job::command("doctor", As::Root, &["sh", "-c", SMOKE_DOCTOR]),
    ];
    for test in artifacts.tests.iter().filter(|test| test.name.starts_with("jail_")) {
        jobs.push(Job {
            name: test.name.clone(),
            kind: Kind::Tests,
            run_as: As::Root,
            seconds: TEST_SECONDS,
            executable: Some(test.path.clone()),
            words: vec![format!("/guest/{}", test.name), "--test-threads=1".to_owned()],
        });
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guest_unchanged() {
        let job = Job::command("x", As::Tester, &["echo", "it's", "$HOME"]);
        assert_eq!(job.line(), "job 'x' 120 tester 'echo' 'it'\\''s' '$HOME'\n");
    }
}
