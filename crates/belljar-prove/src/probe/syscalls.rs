//! Every rule of the system call filter, tried.

use belljar_linux::sys::attempt;

use super::{Arguments, Probed, in_child};
use crate::answer::Told;
use crate::numbers::is_named;
use crate::rules::{self, Call};

/// Past the last number of any kernel so far.
const MOST_NUMBERS: i64 = 1024;

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

fn make(calls: &[Call]) -> Told {
    let mut told = Told::default();
    for call in calls {
        told.answered(call.shown(), in_child(|| attempt::by_number(call.number, call.args)));
    }
    told
}

/// `all`: every number that the filter does not name. Not on an unprotected arm, where some of them
/// would do something; `known` are two that do nothing there.
pub(super) fn unknown_numbers(args: &Arguments<'_>) -> Probed {
    let known = [("clone3", libc::SYS_clone3), ("openat2", libc::SYS_openat2)];
    let mut told = Told::default();
    for (name, number) in known {
        told.answered(name, in_child(|| attempt::by_number(number, [0; 6])));
    }
    if args.text(0, "all or known")? == "all" {
        let unnamed = |number: &i64| !is_named(*number) && !UNFILTERED.contains(number);
        for number in (0..MOST_NUMBERS).filter(unnamed) {
            let answer = in_child(|| attempt::by_number(number, [0; 6]));
            told.answered(format!("number {number}"), answer);
        }
    }
    Ok(told)
}

/// Calls in the modes of other processors.
#[cfg(target_arch = "x86_64")]
pub(super) fn other_modes(_: &Arguments<'_>) -> Probed {
    const X32: i64 = 0x4000_0000;
    let mut told = Told::default();
    told.answered("32-bit", in_child(attempt::call_in_32_bit_mode));
    told.answered("x32", in_child(|| attempt::by_number(X32 | libc::SYS_getpid, [0; 6])));
    Ok(told)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn other_modes(_: &Arguments<'_>) -> Probed {
    Ok(Told::default())
}
