//! Compares the results inside with the control, and returns a verdict.

use rustix::io::Errno;

use crate::case::Verdict;
use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::TestBed;

/// What the same attempt on the unprotected arm shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// It got through, so a refusal inside is the sandbox's.
    Through,
    /// This host has nothing of that kind.
    Absent,
    /// It was refused there too.
    Refused,
}

/// The usual reading: it succeeded, or the kernel has no such thing.
pub(super) fn usual(_: &str, answer: AttemptResult) -> Control {
    match answer {
        AttemptResult::Succeeded => Control::Through,
        AttemptResult::Errno(
            libc::ENOSYS | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENODEV,
        ) => Control::Absent,
        _ => Control::Refused,
    }
}

/// For calls that fail even where they are allowed: any answer but EPERM shows that they were let in.
pub(super) fn let_in(_: &str, answer: AttemptResult) -> Control {
    if answer.is(Errno::PERM) { Control::Refused } else { Control::Through }
}

/// For files of the kernel: which of them a host has, and lets anybody open, differs. One is enough.
pub(super) fn anywhere(_: &str, answer: AttemptResult) -> Control {
    if answer == AttemptResult::Succeeded { Control::Through } else { Control::Absent }
}

/// The answers that are refusals. A kernel of the run's own has others for the same thing, which count
/// only there.
pub(super) fn refusals(
    testbed: &TestBed,
    usual: &[AttemptResult],
    of_its_own: &[AttemptResult],
) -> Vec<AttemptResult> {
    let own = if testbed.kernel_is_separate() { of_its_own } else { &[] };
    [usual, own].concat()
}

/// Every attempt must have had one of the answers inside, and must have got through on the other arm.
/// The two lists belong together by their order: paths differ between the arms.
pub(super) fn judge(
    inside: &ProbeReport,
    control: &ProbeReport,
    allowed: &[AttemptResult],
    reads: fn(&str, AttemptResult) -> Control,
) -> Verdict {
    if let Some(verdict) = broken(inside, allowed) {
        return verdict;
    }
    if inside.tries.len() != control.tries.len() || inside.tries.is_empty() {
        return Verdict::no_control(format!(
            "{} attempts inside, {} outside",
            inside.tries.len(),
            control.tries.len()
        ));
    }
    let mut through = 0;
    for tried in &control.tries {
        match reads(&tried.what, tried.answer) {
            Control::Through => through += 1,
            Control::Absent => {}
            Control::Refused => return refused_too(&tried.what, tried.answer),
        }
    }
    if through == 0 {
        return if rustix::process::geteuid().is_root() {
            Verdict::not_tried("this host has nothing of the kind")
        } else {
            Verdict::no_control("outside, an ordinary user gets at none of it either")
        };
    }
    Verdict::held(summary(inside))
}

/// Something of the host's that was met inside. It is recognised by its identity, or by a text that only the host has:
/// what an image has under the same name is nobody's secret, whatever the attempt on it answered.
pub(super) fn hosts_own(
    inside: &ProbeReport,
    outside: &ProbeReport,
    canaries: &[&str],
) -> Option<Verdict> {
    inside.marks.iter().find_map(|(path, mark)| {
        if canaries.iter().any(|canary| mark.holds(canary)) {
            return Some(Verdict::broke(format!("{path}: the host's text was read")));
        }
        let same = outside.marks.iter().find(|(_, other)| mark.is_same(other));
        same.map(|(other, _)| Verdict::broke(format!("{path} is the host's {other}")))
    })
}

/// The same, with the control: outside, everything that was looked for is found.
pub(super) fn nothing_of_the_hosts(
    inside: &ProbeReport,
    outside: &ProbeReport,
    canaries: &[&str],
) -> Verdict {
    if let Some(verdict) = hosts_own(inside, outside, canaries) {
        return verdict;
    }
    if let Some(tried) = outside.tries.iter().find(|tried| tried.answer != AttemptResult::Succeeded)
    {
        return refused_too(&tried.what, tried.answer);
    }
    let known = |canary: &&str| outside.marks.values().any(|mark| mark.holds(canary));
    if outside.tries.is_empty() || !canaries.iter().all(known) {
        return Verdict::no_control("outside, it was not recognised either");
    }
    Verdict::held(met(inside))
}

/// The answers inside, where what could be read was none of the host's.
pub(super) fn met(inside: &ProbeReport) -> String {
    let own = inside.successes();
    let refused = ProbeReport {
        tries: inside
            .tries
            .iter()
            .filter(|tried| tried.answer != AttemptResult::Succeeded)
            .cloned()
            .collect(),
        ..ProbeReport::default()
    };
    match (own, refused.tries.len()) {
        (0, _) => summary(inside),
        (own, 0) => format!("{own} files of its own, none of the host's"),
        (own, _) => format!("{}; {own} of its own, none of the host's", summary(&refused)),
    }
}

/// An attempt with a result that is not allowed.
pub(super) fn broken(inside: &ProbeReport, allowed: &[AttemptResult]) -> Option<Verdict> {
    let wrong = inside.tries.iter().find(|tried| !allowed.contains(&tried.answer))?;
    let expected: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    Some(Verdict::broke(format!("{}: {}, not {}", wrong.what, wrong.answer, expected.join(" or "))))
}

pub(super) fn refused_too(what: &str, answer: AttemptResult) -> Verdict {
    let hint = if rustix::process::geteuid().is_root() { "" } else { "; the control needs root" };
    Verdict::no_control(format!("outside, {what}: {answer}{hint}"))
}

/// The answers inside, each once.
pub(super) fn summary(inside: &ProbeReport) -> String {
    let mut answers: Vec<String> = Vec::new();
    for tried in &inside.tries {
        let answer = tried.answer.to_string();
        if !answers.contains(&answer) {
            answers.push(answer);
        }
    }
    let count = inside.tries.len();
    let attempts = if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") };
    format!("{attempts}: {}", answers.join(", "))
}

pub(super) const EPERM: AttemptResult = AttemptResult::Errno(libc::EPERM);
pub(super) const ENOENT: AttemptResult = AttemptResult::Errno(libc::ENOENT);
pub(super) const EACCES: AttemptResult = AttemptResult::Errno(libc::EACCES);
pub(super) const EROFS: AttemptResult = AttemptResult::Errno(libc::EROFS);
pub(super) const EXDEV: AttemptResult = AttemptResult::Errno(libc::EXDEV);
pub(super) const ESRCH: AttemptResult = AttemptResult::Errno(libc::ESRCH);
pub(super) const ENOSYS: AttemptResult = AttemptResult::Errno(libc::ENOSYS);
pub(super) const EINVAL: AttemptResult = AttemptResult::Errno(libc::EINVAL);
pub(super) const ESPIPE: AttemptResult = AttemptResult::Errno(libc::ESPIPE);
pub(super) const EBADF: AttemptResult = AttemptResult::Errno(libc::EBADF);
pub(super) const ENODEV: AttemptResult = AttemptResult::Errno(libc::ENODEV);
pub(super) const EOPNOTSUPP: AttemptResult = AttemptResult::Errno(libc::EOPNOTSUPP);
pub(super) const EHOSTUNREACH: AttemptResult = AttemptResult::Errno(libc::EHOSTUNREACH);
pub(super) const ECONNREFUSED: AttemptResult = AttemptResult::Errno(libc::ECONNREFUSED);
pub(super) const ENETUNREACH: AttemptResult = AttemptResult::Errno(libc::ENETUNREACH);

#[cfg(test)]
mod tests {
    use super::*;

    fn report(answers: &[AttemptResult]) -> ProbeReport {
        let mut report = ProbeReport::default();
        for (at, answer) in answers.iter().enumerate() {
            report.answered(format!("attempt {at}"), *answer);
        }
        report
    }

    #[test]
    fn an_attempt_that_gets_through_breaks() {
        let through = report(&[EPERM, AttemptResult::Succeeded]);
        let verdict = judge(&through, &through, &[EPERM], let_in);
        assert!(verdict.has_broken() && !verdict.is_sound(), "{verdict:?}");
        assert!(verdict.why().contains("attempt 1: succeeded"), "{verdict:?}");
    }

    #[test]
    fn another_error_than_the_expected_one_breaks() {
        let control = report(&[AttemptResult::Succeeded]);
        assert!(judge(&report(&[ENOENT]), &control, &[EPERM], usual).has_broken());
        assert!(judge(&report(&[EPERM]), &control, &[EPERM], usual).has_held());
    }

    /// A probe that looked at these paths, as both arms do.
    fn looked_at(paths: &[&std::path::Path]) -> ProbeReport {
        let mut report = ProbeReport::default();
        for path in paths {
            let answer = AttemptResult::of(
                std::fs::read(path).map(drop).map_err(|_| rustix::io::Errno::ACCESS),
            );
            report.answered(path.display().to_string(), answer);
            report.met(path);
        }
        report
    }

    /// What an image has under the name of a file of the host's is not the host's, readable or not; and the
    /// host's own is known under any name.
    #[test]
    fn a_file_of_the_host_is_told_by_what_it_is() {
        let base = std::env::temp_dir().join(format!("belljar-judge-{}", std::process::id()));
        let at = |name: &str| base.join(name);
        assert!(std::fs::create_dir(&base).is_ok());
        for (name, text) in
            [("host", "canary\n"), ("image", "an image's own\n"), ("copy", "canary\n")]
        {
            assert!(std::fs::write(at(name), text).is_ok());
        }
        assert!(std::fs::hard_link(at("host"), at("elsewhere")).is_ok());
        let outside = looked_at(&[&at("host")]);
        for (name, canaries, is_broken) in [
            ("image", &["canary\n"][..], false),
            ("missing", &["canary\n"], false),
            ("elsewhere", &[], true),
            ("copy", &["canary\n"], true),
        ] {
            let verdict = nothing_of_the_hosts(&looked_at(&[&at(name)]), &outside, canaries);
            assert_eq!(
                (verdict.has_broken(), verdict.has_held()),
                (is_broken, !is_broken),
                "{name}: {verdict:?}"
            );
        }
        // One that can be seen and not read is there all the same.
        let mut unread = looked_at(&[&at("elsewhere")]);
        unread.tries[0].answer = EACCES;
        assert!(nothing_of_the_hosts(&unread, &outside, &[]).has_broken());
        // And without a control nothing is shown.
        let nothing = looked_at(&[&at("missing")]);
        assert!(!nothing_of_the_hosts(&nothing, &nothing, &["canary\n"]).is_sound());
        assert!(std::fs::remove_dir_all(&base).is_ok());
    }

    #[test]
    fn a_refusal_without_a_control_is_not_sound() {
        let refused = report(&[EPERM]);
        for control in [
            report(&[EPERM]),
            report(&[]),
            report(&[AttemptResult::Succeeded, AttemptResult::Succeeded]),
        ] {
            let verdict = judge(&refused, &control, &[EPERM], usual);
            assert!(
                matches!(verdict, Verdict::NoControl { .. }) && !verdict.is_sound(),
                "{verdict:?}"
            );
        }
        let nothing = judge(&report(&[]), &report(&[]), &[EPERM], usual);
        assert!(matches!(nothing, Verdict::NoControl { .. }), "no attempt, no verdict");
    }
}
