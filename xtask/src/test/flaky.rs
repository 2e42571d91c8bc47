//! Lists the tests that failed once and passed when the runner repeated them.
//!
//! On a busy machine a test of real processes can miss a deadline, so it is repeated once. Whatever needs that is
//! named in the summary: it is a test, or a program, that has to be mended. Property tests cannot hide a failure
//! here: their random numbers are the same in both tries.

use std::collections::BTreeSet;

use super::report::Outcome;
use super::runner_report::test_name;

#[derive(Default)]
pub(super) struct Flaky(BTreeSet<String>);

impl Flaky {
    pub(super) fn add(&mut self, junit: &str) {
        let mut test = String::new();
        for line in junit.lines() {
            test = test_name(line).unwrap_or(test);
            if line.trim_start().starts_with("<flakyFailure ") {
                self.0.insert(test.clone());
            }
        }
    }

    pub(super) fn verdict(&self) -> Outcome {
        match self.0.is_empty() {
            true => Outcome::Passed,
            false => {
                let tests: Vec<&str> = self.0.iter().map(String::as_str).collect();
                Outcome::NotChecked(format!("passed only when repeated: {}", tests.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = "\
    <testcase name=\"many::starts\" classname=\"belljar::fault\" timestamp=\"x\" time=\"0.1\">
        <flakyFailure timestamp=\"x\" time=\"1.0\" message=\"panicked\" type=\"test failure\">
            <system-out>&lt;flakyFailure said by a test</system-out>
        </flakyFailure>
    </testcase>
    <testcase name=\"git\" classname=\"belljar::real_programs\" timestamp=\"x\" time=\"0.1\">
        <rerunFailure timestamp=\"x\" time=\"1.0\" type=\"test failure\"></rerunFailure>
    </testcase>
";

    #[test]
    fn a_test_that_was_repeated_is_named() {
        let mut flaky = Flaky::default();
        assert!(matches!(flaky.verdict(), Outcome::Passed), "the control");
        flaky.add(JUNIT);
        let Outcome::NotChecked(why) = flaky.verdict() else { panic!("not shown") };
        assert_eq!(why, "passed only when repeated: belljar::fault many::starts");
    }
}
