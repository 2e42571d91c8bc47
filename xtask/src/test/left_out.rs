//! What tests have left out. Such a test passes and prints the reason, which the runner hides; here it
//! is counted and shown, and it is a failure where everything has to work.

use std::collections::{BTreeMap, BTreeSet};

use super::report::Outcome;
use super::runner_report::{plain, test_name};

/// How a test marks the reason, at the beginning of a line or after the test's name.
const MARKS: [&str; 2] = ["NOT CHECKED: ", "SKIPPED: "];

/// Nothing else may be left out where the caller names what must work, as CI does. These are programs that
/// the suite does not install, since each would bring hundreds of packages along.
const MAY_BE_LEFT_OUT: [&str; 4] = [
    "java is not installed",
    "javac is not installed",
    "npm is not installed",
    "fetch of node ", // Debian's is older than the first that knows proxy variables
];

/// Reasons, each with the tests that gave it.
#[derive(Default)]
pub(super) struct LeftOut {
    found: BTreeMap<String, BTreeSet<String>>,
    /// Why it is not known what was left out.
    unknown: Option<String>,
}

impl LeftOut {
    pub(super) fn set_unknown(&mut self, why: String) {
        self.unknown = Some(why);
    }

    pub(super) fn add(&mut self, junit: &str) {
        for (test, reason) in reasons(junit) {
            self.found.entry(reason).or_default().insert(test);
        }
    }

    /// `strict`: only what is meant to be left out may be.
    pub(super) fn verdict(&self, strict: Strict) -> Outcome {
        let mut all = Vec::new();
        let mut too_much = Vec::new();
        for (reason, tests) in &self.found {
            let line = format!("{reason} ({})", count(tests));
            for test in tests {
                eprintln!("    {test}: {reason}");
            }
            if !MAY_BE_LEFT_OUT.iter().any(|allowed| reason.contains(allowed)) {
                too_much.push(line.clone());
            }
            all.push(line);
        }
        if let Some(why) = &self.unknown {
            let line = format!("it is not known what the tests left out: {why}");
            too_much.push(line.clone());
            all.push(line);
        }
        match (strict, all.is_empty(), too_much.is_empty()) {
            (_, true, _) => Outcome::Passed,
            (Strict::Yes, _, false) => {
                Outcome::Failed(format!("tests left out: {}", too_much.join("; ")))
            }
            _ => Outcome::NotChecked(all.join("; ")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strict {
    Yes,
    No,
}

fn count(tests: &BTreeSet<String>) -> String {
    match tests.len() {
        1 => "1 test".to_owned(),
        many => format!("{many} tests"),
    }
}

/// Test and reason: an element that begins a test, and lines of text.
fn reasons(junit: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut test = String::new();
    for line in junit.lines() {
        test = test_name(line).unwrap_or(test);
        // A line of its own, or behind the name that the test harness has printed.
        let begins = |before: &str| {
            let ends = ["... ", "<system-err>", "<system-out>"];
            before.is_empty() || ends.iter().any(|end| before.ends_with(end))
        };
        let marked = MARKS.iter().find_map(|mark| line.split_once(mark));
        if let Some((_, reason)) = marked.filter(|(before, _)| begins(before)) {
            let reason = reason.split("</").next().unwrap_or_default();
            found.push((test.clone(), plain(reason.trim())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = "\
<testsuite name=\"belljar::real_programs\" tests=\"2\">
    <testcase name=\"java\" classname=\"belljar::real_programs\" timestamp=\"x\" time=\"0.1\">
        <system-out>running 1 test
</system-out>
        <system-err>--- as Me
NOT CHECKED: java is not installed
NOT CHECKED: java is not installed</system-err>
    </testcase>
    <testcase name=\"git\" classname=\"belljar::real_programs\" timestamp=\"x\" time=\"0.1\">
        <system-err>NOT CHECKED: &lt;as an ordinary user&gt; &amp; more</system-err>
    </testcase>
    <testcase name=\"bash\" classname=\"belljar::real_programs\"><system-out>fine
test bash ... SKIPPED: with nothing
=> a step: NOT CHECKED: said of something else</system-out></testcase>
</testsuite>
";

    fn of(junit: &str) -> LeftOut {
        let mut left_out = LeftOut::default();
        left_out.add(junit);
        left_out
    }

    #[test]
    fn what_passing_tests_said_is_found_with_their_names() {
        let found = of(JUNIT).found;
        let java = BTreeSet::from(["belljar::real_programs java".to_owned()]);
        assert_eq!(found["java is not installed"], java);
        let git = BTreeSet::from(["belljar::real_programs git".to_owned()]);
        assert_eq!(found["<as an ordinary user> & more"], git);
        assert!(found["with nothing"].contains("belljar::real_programs bash"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn it_is_always_shown_and_a_failure_where_everything_has_to_work() {
        let all = of(JUNIT);
        assert!(
            matches!(all.verdict(Strict::No), Outcome::NotChecked(why) if why.contains("1 test"))
        );
        let Outcome::Failed(why) = all.verdict(Strict::Yes) else { panic!("not a failure") };
        assert!(why.contains("ordinary user") && !why.contains("java"), "{why}");
        // Control: what may be left out is shown only, and nothing is nothing.
        let java = of(&JUNIT.replace("NOT CHECKED: &lt;", "fine").replace("SKIPPED", "fine"));
        assert!(matches!(java.verdict(Strict::Yes), Outcome::NotChecked(_)));
        assert!(matches!(of("<testsuite/>").verdict(Strict::Yes), Outcome::Passed));
    }

    #[test]
    fn no_report_is_no_proof_that_nothing_was_left_out() {
        let unknown = LeftOut { unknown: Some("no such file".into()), ..LeftOut::default() };
        assert!(matches!(unknown.verdict(Strict::Yes), Outcome::Failed(_)));
        assert!(matches!(unknown.verdict(Strict::No), Outcome::NotChecked(_)));
    }
}
