//! Reads the console of the guest, and decides. What is not reported as passed has failed:
//! a job without a result, a test executable without a test, a guest that did not come to its end.

use super::job::{Job, JobKind};

pub(crate) enum ConsoleLine {
    Began(String),
    Ended {
        name: String,
        passed: bool,
        detail: String,
    },
    Note(String),
    Done,
    /// Output of a job, or of the kernel.
    Output,
}

pub(crate) fn parse(line: &str) -> ConsoleLine {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "GUEST-BEGIN" => ConsoleLine::Began(rest.to_owned()),
        "GUEST-NOTE" => ConsoleLine::Note(rest.to_owned()),
        "GUEST-DONE" => ConsoleLine::Done,
        "GUEST-RESULT" => {
            let (name, detail) = rest.split_once(' ').unwrap_or((rest, ""));
            ConsoleLine::Ended {
                name: name.to_owned(),
                passed: detail == "ok",
                detail: detail.to_owned(),
            }
        }
        _ => ConsoleLine::Output,
    }
}

/// What the jobs printed, from the whole console.
pub(crate) fn output_in(console: &str) -> String {
    let mut output = String::new();
    let mut is_running = false;
    for line in console.lines() {
        match parse(line) {
            ConsoleLine::Began(_) => is_running = true,
            ConsoleLine::Ended { .. } => is_running = false,
            ConsoleLine::Output if is_running => {
                output.push_str(line);
                output.push('\n');
            }
            ConsoleLine::Output | ConsoleLine::Note(_) | ConsoleLine::Done => {}
        }
    }
    output
}

/// How many tests a test executable reports.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) ignored: u32,
}

/// The last `test result: ok. 3 passed; 0 failed; 1 ignored; …` line.
pub(crate) fn counts(output: &[String]) -> Option<Counts> {
    let line = output.iter().rev().find_map(|line| line.strip_prefix("test result: "))?;
    let (_, numbers) = line.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split("; ") {
        let (number, what) = part.split_once(' ')?;
        let target = match what {
            "passed" => &mut counts.passed,
            "failed" => &mut counts.failed,
            "ignored" => &mut counts.ignored,
            _ => continue,
        };
        *target = number.parse().ok()?;
    }
    Some(counts)
}

pub(crate) enum Verdict {
    Passed(Option<Counts>),
    Failed(String),
}

pub(crate) fn judge(job: &Job, passed: bool, detail: &str, output: &[String]) -> Verdict {
    let counts = counts(output);
    match (job.kind, passed, counts) {
        (_, false, _) => Verdict::Failed(detail.to_owned()),
        (JobKind::Command, true, _) => Verdict::Passed(None),
        (JobKind::Tests, true, Some(counts)) if counts.failed == 0 && counts.passed > 0 => {
            Verdict::Passed(Some(counts))
        }
        (JobKind::Tests, true, Some(counts)) => {
            Verdict::Failed(format!("{} tests passed, {} failed", counts.passed, counts.failed))
        }
        (JobKind::Tests, true, None) => Verdict::Failed("printed no test result".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::As;
    use super::*;

    fn tests_job() -> Job {
        Job { kind: JobKind::Tests, ..Job::command("jail_x", As::Root, &[]) }
    }

    fn output(line: &str) -> Vec<String> {
        vec!["running".into(), line.into(), String::new()]
    }

    #[test]
    fn what_a_job_printed_is_between_its_beginning_and_its_end() {
        let console = "kernel\nGUEST-BEGIN a\none\ntwo\n\nGUEST-RESULT a ok\nafter\nGUEST-DONE\n";
        assert_eq!(output_in(console), "one\ntwo\n\n");
    }

    #[test]
    fn the_protocol_is_read() {
        assert!(matches!(parse("GUEST-BEGIN a"), ConsoleLine::Began(name) if name == "a"));
        assert!(matches!(parse("GUEST-DONE"), ConsoleLine::Done));
        assert!(matches!(parse("GUEST-RESULT a ok"), ConsoleLine::Ended { passed: true, .. }));
        let failed = parse("GUEST-RESULT a fail (exit code 101)");
        assert!(
            matches!(failed, ConsoleLine::Ended { passed: false, detail, .. } if detail.contains("101"))
        );
        assert!(matches!(parse("GUEST-RESULT a okay"), ConsoleLine::Ended { passed: false, .. }));
        assert!(matches!(parse("x GUEST-RESULT a ok"), ConsoleLine::Output));
    }

    #[test]
    fn a_test_executable_must_have_run_a_test() {
        let good = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let expected = Counts { passed: 3, failed: 0, ignored: 1 };
        assert_eq!(counts(&output(good)), Some(expected));
        assert!(matches!(judge(&tests_job(), true, "ok", &output(good)), Verdict::Passed(_)));
        let none = "test result: ok. 0 passed; 0 failed; 4 ignored; 0 measured";
        assert!(matches!(judge(&tests_job(), true, "ok", &output(none)), Verdict::Failed(_)));
        assert!(matches!(judge(&tests_job(), true, "ok", &[]), Verdict::Failed(_)));
        assert!(matches!(judge(&tests_job(), false, "fail", &output(good)), Verdict::Failed(_)));
    }
}
