//! The kernel's surface, and the filter over it.

use belljar_spec::Clause;

use super::judge::{
    Control, EACCES, ENOSYS, EPERM, broken, judge, let_in, refused_too, summary, usual,
};
use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::rules;
use crate::stage::{Run, Stage, StageError, Unprotected};

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
        run: |stage| surface(stage, "perf_event_open"),
    },
    Case {
        name: "kernel.bpf",
        attack: "make a bpf map",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |stage| surface(stage, "bpf"),
    },
    Case {
        name: "kernel.io-uring",
        attack: "set up an io_uring, whose calls no filter sees",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |stage| surface(stage, "io_uring"),
    },
    Case {
        name: "kernel.userfaultfd",
        attack: "handle page faults in user space",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: |stage| surface(stage, "userfaultfd"),
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

fn keyring(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "keyring").arg("given"))?.told()?;
    let control = stage.outside(Unprotected::Directly, ["keyring", "own-session"])?;
    if control.heard().is_none() && control.stderr.contains("not implemented") {
        return Ok(Verdict::not_tried("this kernel has no keyrings"));
    }
    Ok(judge(&inside, &control.told()?, &[EPERM], usual))
}

fn surface(stage: &Stage, call: &str) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "surface").arg(call))?.told()?;
    let control = stage.outside(Unprotected::Directly, ["surface", call])?.told()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}

fn terminal_injection(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "terminal"))?.told()?;
    let control = stage.outside(Unprotected::Scratch, ["terminal"])?.told()?;
    Ok(judge(&inside, &control, &[EPERM], |what, answer| match what {
        // Only a console of the machine has it; on others it is an unknown request.
        "TIOCLINUX" | "TIOCLINUX, high bit" => let_in(what, answer),
        what => usual(what, answer),
    }))
}

fn administration(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "administration"))?.told()?;
    let control = stage.outside(Unprotected::Scratch, ["administration"])?.told()?;
    Ok(judge(&inside, &control, &[EPERM], let_in))
}

fn fileless(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "fileless"))?.told()?;
    let control = stage.outside(Unprotected::Directly, ["fileless"])?.told()?;
    // The plain way works on every kernel; the flag came with the knob that forbids it.
    if control.answer("memfd_create, plain") != Some(Answer::Succeeded) {
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

fn plain_rules(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "plain-denials"))?.told()?;
    let control = stage.outside(Unprotected::Scratch, ["plain-denials"])?.told()?;
    Ok(judge(&inside, &control, &[EPERM], let_in))
}

fn conditions(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let calls = rules::conditional_calls();
    let inside = stage.inside(&Run::of(&workspace, "conditions"))?.told()?;
    let control = stage.outside(Unprotected::Scratch, ["conditions"])?.told()?;
    if inside.tries.len() != calls.len() || control.tries.len() != calls.len() {
        return Err(StageError::Unexpected("not every call was made".to_owned()));
    }
    let (mut denied, mut refused_anyway) = (0, 0);
    for ((call, inside), control) in calls.iter().zip(&inside.tries).zip(&control.tries) {
        let refusal = Answer::Errno(call.errno);
        if call.denied && inside.answer != refusal {
            return Ok(Verdict::broke(format!(
                "{}: {}, not {refusal}",
                inside.what, inside.answer
            )));
        }
        if !call.denied && inside.answer == EPERM && stage.kernel_is_separate() {
            refused_anyway += 1; // that kernel's own answer
        } else if !call.denied && inside.answer == EPERM {
            return Err(StageError::Unexpected(format!(
                "{} is refused, and no rule says so",
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

fn unknown_numbers(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "unknown-numbers").arg("all"))?.told()?;
    if let Some(verdict) = broken(&inside, &[ENOSYS]) {
        return Ok(verdict);
    }
    let control = stage.outside(Unprotected::Scratch, ["unknown-numbers", "known"])?.told()?;
    match control.tries.iter().find(|tried| tried.answer == ENOSYS) {
        Some(tried) => Ok(refused_too(&tried.what, tried.answer)),
        None => Ok(Verdict::held(summary(&inside))),
    }
}

fn other_modes(stage: &Stage) -> Result<Verdict, StageError> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Verdict::not_tried("this processor has no other modes"));
    }
    let workspace = stage.workspace()?;
    let mut inside = stage.inside(&Run::of(&workspace, "other-modes"))?.told()?;
    let mut control = stage.outside(Unprotected::Scratch, ["other-modes"])?.told()?;
    // gVisor has no 32-bit mode: that instruction makes the 64-bit call with the same number, under the
    // same filter. The marked one shows it: its mark is on the 64-bit call alone.
    let as_64_bit =
        stage.kernel_is_separate() && matches!(inside.answer("32-bit"), Some(Answer::Errno(_)));
    if as_64_bit {
        inside.tries.retain(|tried| tried.what != "32-bit");
        control.tries.retain(|tried| tried.what != "32-bit");
    }
    // Without support in the kernel, the instruction is a fault and the number unknown: no kill by a
    // filter, which is all that the control has to show.
    let verdict =
        judge(&inside, &control, &[Answer::Killed(libc::SIGSYS)], |_, answer| match answer {
            Answer::Killed(libc::SIGSYS) => Control::Refused,
            _ => Control::Through,
        });
    Ok(match verdict {
        Verdict::Held { how } if as_64_bit => {
            Verdict::held(format!("{how}; a 32-bit call is filtered as the 64-bit one it is there"))
        }
        other => other,
    })
}
