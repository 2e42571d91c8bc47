//! Attacks on the kernel's interface and on the system call filter.

use belljar_spec::Clause;

use super::judge::{
    Control, EACCES, ENOSYS, EPERM, broken, judge, let_in, refused_too, summary, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::rules;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "kernel.keyring",
        attack: "add a key and look for another run's",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: keyring,
    },
    Case {
        name: "kernel.perf-event",
        attack: "perf_event_open",
        clause: Clause::ProcSyscalls,
        severity: Severity::Medium,
        run: |testbed| surface(testbed, "perf_event_open"),
    },
    Case {
        name: "kernel.bpf",
        attack: "make a bpf map",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |testbed| surface(testbed, "bpf"),
    },
    Case {
        name: "kernel.io-uring",
        attack: "set up an io_uring, whose calls no filter sees",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |testbed| surface(testbed, "io_uring"),
    },
    Case {
        name: "kernel.userfaultfd",
        attack: "handle page faults in user space",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |testbed| surface(testbed, "userfaultfd"),
    },
    Case {
        name: "kernel.terminal-injection",
        attack: "type into a terminal, also with a high bit in the request",
        clause: Clause::ProcSyscalls,
        severity: Severity::Critical,
        run: terminal_injection,
    },
    Case {
        name: "kernel.administration",
        attack: "modules, kexec, reboot, swap, clocks, accounting, ports",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: administration,
    },
    Case {
        name: "kernel.fileless-program",
        attack: "execute a program that exists in memory only",
        clause: Clause::ProcSyscalls,
        severity: Severity::Medium,
        run: fileless,
    },
    Case {
        name: "filter.plain-rules",
        attack: "make every call that the filter forbids",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: plain_rules,
    },
    Case {
        name: "filter.conditions",
        attack: "make every conditional call with forbidden and with altered arguments",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: conditions,
    },
    Case {
        name: "filter.unknown-numbers",
        attack: "make every call that the filter does not name",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: unknown_numbers,
    },
    Case {
        name: "filter.other-modes",
        attack: "make 32-bit and x32 calls",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: other_modes,
    },
];

fn keyring(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "keyring").arg("given"))?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["keyring", "own-session"])?;
    if control.probe_report().is_none() && control.stderr.contains("not implemented") {
        return Ok(Verdict::not_tried("this kernel has no keyrings"));
    }
    Ok(judge(&inside, &control.report()?, &[EPERM], usual))
}

fn surface(testbed: &TestBed, call: &str) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "surface").arg(call))?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["surface", call])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}

fn terminal_injection(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "terminal"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["terminal"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], |what, answer| match what {
        // Only a console of the machine has it; on others it is an unknown request.
        "TIOCLINUX" | "TIOCLINUX, high bit" => let_in(what, answer),
        what => usual(what, answer),
    }))
}

fn administration(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "administration"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["administration"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], let_in))
}

fn fileless(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "fileless"))?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["fileless"])?.report()?;
    // The plain way works on every kernel; the flag came with the knob that forbids it.
    if control.answer("memfd_create, plain") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    if inside.successes() > 0 {
        let why = "vm.memfd_noexec cannot be set for a run; what such a program may do is the same";
        return Ok(Verdict::NotPromised { why: why.to_owned() });
    }
    match broken(&inside, &[EACCES, EPERM]) {
        Some(verdict) => Ok(verdict),
        None => Ok(Verdict::held(summary(&inside))),
    }
}

fn plain_rules(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "plain-denials"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["plain-denials"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], let_in))
}

fn conditions(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let calls = rules::conditional_calls();
    let inside = testbed.inside(&Run::of(&workspace, "conditions"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["conditions"])?.report()?;
    if inside.tries.len() != calls.len() || control.tries.len() != calls.len() {
        return Err(TestBedError::Unexpected("not every call was made".to_owned()));
    }
    let (mut denied, mut refused_anyway) = (0, 0);
    for ((call, inside), control) in calls.iter().zip(&inside.tries).zip(&control.tries) {
        let refusal = AttemptResult::Errno(call.errno);
        if call.denied && inside.answer != refusal {
            return Ok(Verdict::broke(format!(
                "{}: {}, not {refusal}",
                inside.what, inside.answer
            )));
        }
        if !call.denied && inside.answer == EPERM && testbed.kernel_is_separate() {
            refused_anyway += 1; // that kernel's own answer
        } else if !call.denied && inside.answer == EPERM {
            return Err(TestBedError::Unexpected(format!(
                "{} is refused, and no rule refuses it",
                inside.what
            )));
        }
        if call.denied && let_in(&control.what, control.answer) != Control::Through {
            return Ok(refused_too(&control.what, control.answer));
        }
        denied += usize::from(call.denied);
    }
    let through = calls.len() - denied - refused_anyway;
    let mut how = format!("{denied} refused, {through} beside them let through");
    if refused_anyway > 0 {
        how.push_str(&format!(", {refused_anyway} that its own kernel refuses"));
    }
    Ok(Verdict::held(how))
}

fn unknown_numbers(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "unknown-numbers").arg("all"))?.report()?;
    if let Some(verdict) = broken(&inside, &[ENOSYS]) {
        return Ok(verdict);
    }
    let control = testbed.outside(Unprotected::Scratch, ["unknown-numbers", "known"])?.report()?;
    match control.tries.iter().find(|tried| tried.answer == ENOSYS) {
        Some(tried) => Ok(refused_too(&tried.what, tried.answer)),
        None => Ok(Verdict::held(summary(&inside))),
    }
}

fn other_modes(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Verdict::not_tried("this processor has no other modes"));
    }
    let workspace = testbed.workspace()?;
    let mut inside = testbed.inside(&Run::of(&workspace, "other-modes"))?.report()?;
    let mut control = testbed.outside(Unprotected::Scratch, ["other-modes"])?.report()?;
    // gVisor has no 32-bit mode: that instruction makes the 64-bit call with the same number, under the
    // same filter. The marked one shows it: its mark is on the 64-bit call alone.
    let as_64_bit = testbed.kernel_is_separate()
        && matches!(inside.answer("32-bit"), Some(AttemptResult::Errno(_)));
    if as_64_bit {
        inside.tries.retain(|tried| tried.what != "32-bit");
        control.tries.retain(|tried| tried.what != "32-bit");
    }
    // Without support in the kernel, the instruction is a fault and the number unknown: no kill by a
    // filter, which is all that the control has to show.
    let verdict =
        judge(
            &inside,
            &control,
            &[AttemptResult::Killed(libc::SIGSYS)],
            |_, answer| match answer {
                AttemptResult::Killed(libc::SIGSYS) => Control::Refused,
                _ => Control::Through,
            },
        );
    Ok(match verdict {
        Verdict::Held { how } if as_64_bit => {
            Verdict::held(format!("{how}; a 32-bit call is filtered as the 64-bit one it is there"))
        }
        other => other,
    })
}
