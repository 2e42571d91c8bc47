//! Tries every rule of the system call filter.

use belljar_linux::sys::attempt;
#[cfg(target_arch = "x86_64")]
use belljar_linux::sys::seccomp::{self, Program};

use super::{Arguments, Probed, in_child};
use crate::numbers::is_named;
use crate::probe_report::ProbeReport;
use crate::rules::{self, Call};

/// Past the last number of any kernel so far.
const MAX_NUMBERS: i64 = 1024;

/// uretprobe and uprobe: newer kernels ask no filter about them, and end whoever makes one from
/// anywhere but the place where the kernel itself has put it.
#[cfg(target_arch = "x86_64")]
const UNFILTERED: &[i64] = &[335, 336];
#[cfg(not(target_arch = "x86_64"))]
const UNFILTERED: &[i64] = &[];

pub(super) fn plain_denials(_: &Arguments<'_>) -> Probed {
    Ok(make(&rules::plain_denials()))
}

pub(super) fn conditions(_: &Arguments<'_>) -> Probed {
    Ok(make(&rules::conditional_calls()))
}

fn make(calls: &[Call]) -> ProbeReport {
    let mut report = ProbeReport::default();
    for call in calls {
        report.answered(call.shown(), in_child(|| attempt::by_number(call.number, call.args)));
    }
    report
}

/// `all`: every number that the filter does not name. Not on an unprotected arm, where some of them
/// would do something; `known` are two that do nothing there.
pub(super) fn unknown_numbers(args: &Arguments<'_>) -> Probed {
    let known = [("clone3", libc::SYS_clone3), ("openat2", libc::SYS_openat2)];
    let mut report = ProbeReport::default();
    for (name, number) in known {
        report.answered(name, in_child(|| attempt::by_number(number, [0; 6])));
    }
    if args.text(0, "all or known")? == "all" {
        let unnamed = |number: &i64| !is_named(*number) && !UNFILTERED.contains(number);
        for number in (0..MAX_NUMBERS).filter(unnamed) {
            let answer = in_child(|| attempt::by_number(number, [0; 6]));
            report.answered(format!("number {number}"), answer);
        }
    }
    Ok(report)
}

/// Ends who makes the 64-bit call that has the number of a 32-bit `getpid`, and does nothing else: on top
/// of the other filters it shows how they are asked about a 32-bit call. Eight bytes an instruction.
#[cfg(target_arch = "x86_64")]
const MARKED: Program = Program(&[
    0x20, 0, 0, 0, 4, 0, 0, 0, // load the architecture
    0x15, 0, 0, 3, 0x3e, 0, 0, 0xc0, // x86_64, or to the end
    0x20, 0, 0, 0, 0, 0, 0, 0, // load the number
    0x15, 0, 0, 1, 20, 0, 0, 0, // 20, or to the end
    0x06, 0, 0, 0, 0, 0, 0, 0x80, // end the process
    0x06, 0, 0, 0, 0, 0, 0xff, 0x7f, // let it through
]);

/// Calls in the modes of other processors.
#[cfg(target_arch = "x86_64")]
pub(super) fn other_modes(_: &Arguments<'_>) -> Probed {
    const X32: i64 = 0x4000_0000;
    let mut report = ProbeReport::default();
    report.answered("32-bit", in_child(attempt::call_in_32_bit_mode));
    let marked =
        || seccomp::install(&MARKED.instructions()).and_then(|()| attempt::call_in_32_bit_mode());
    report.answered("32-bit, marked", in_child(marked));
    report.answered("x32", in_child(|| attempt::by_number(X32 | libc::SYS_getpid, [0; 6])));
    Ok(report)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn other_modes(_: &Arguments<'_>) -> Probed {
    Ok(ProbeReport::default())
}
