//! Turns the program of a filter into one that reports what it refuses.
//!
//! Nothing about the decisions changes: each place that returns an error to the caller returns SECCOMP_RET_USER_NOTIF
//! instead, and whoever listens gives the same error. A second filter on top could not do this: of several answers the
//! kernel takes the strictest, and an error is stricter than a notification.

use crate::sys::seccomp::Instruction;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
/// The low half of the second argument: the flags of `seccomp`, all of which are there.
const FLAGS_AT: u32 = 24;

const ACTION: u32 = 0xffff_0000;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

pub(super) fn traced(program: &[Instruction]) -> Vec<Instruction> {
    let reported = program.iter().map(|step| match (step.code, step.k & ACTION) {
        (RETURN, libc::SECCOMP_RET_ERRNO) => plain(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        _ => Instruction { code: step.code, jt: step.jt, jf: step.jf, k: step.k },
    });
    no_other_listener().into_iter().chain(reported).collect()
}

/// Of two notifications the kernel takes that of the newer filter. So a listener that a process inside adds for itself
/// would answer in the place of ours, and could let every call through. While ours lives, the kernel refuses a second
/// one with EBUSY; this refuses it always, so that it does not matter whether ours lives.
fn no_other_listener() -> [Instruction; 8] {
    const SECCOMP: u32 = libc::SYS_seccomp as u32;
    const NEW_LISTENER: u32 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32;
    [
        plain(LOAD, ARCH_AT),
        unless_equal(AUDIT_ARCH, 6), // another processor mode: the program ends it
        plain(LOAD, NUMBER_AT),
        unless_equal(SECCOMP, 4),
        plain(LOAD, FLAGS_AT),
        plain(AND, NEW_LISTENER),
        unless_equal(NEW_LISTENER, 1),
        plain(RETURN, libc::SECCOMP_RET_ERRNO | libc::EBUSY as u32),
    ]
}

fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// Skips that many instructions unless the value is this one.
fn unless_equal(k: u32, skipped: u8) -> Instruction {
    Instruction { code: IF_EQUAL, jt: 0, jf: skipped, k }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::{WaitOptions, waitpid};
    use rustix::thread::set_no_new_privs;

    use super::super::COMMAND_PROGRAM;
    use super::super::verdict::run;
    use super::*;
    use crate::sys::attempt;
    use crate::sys::process::{exit_now, fork_with_threads};
    use crate::sys::seccomp::{CallData, install, install_with_listener};

    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

    fn call(number: u32, arguments: [u64; 6]) -> CallData {
        CallData { number, arch: AUDIT_ARCH, arguments }
    }

    /// Numbers that programs of the filter compare with, and others.
    fn values() -> Vec<u64> {
        let program = COMMAND_PROGRAM.instructions();
        let mut all: Vec<u64> = program.iter().map(|step| u64::from(step.k)).collect();
        all.extend([0, 1, 2, 3, 1 << 32, u64::MAX, 0x1000_0011, 0o4755]);
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn exactly_the_refused_calls_are_reported_and_nothing_else_changes() {
        let plain = COMMAND_PROGRAM.instructions();
        let traced = traced(&plain);
        let (mut refused, mut passed) = (0_u64, 0_u64);
        let values = values();
        for number in (0..600).chain([5000, 0x3fff_ffff, 0x4000_0001, u32::MAX]) {
            for (at, value) in values.iter().enumerate() {
                let next = values[(at * 7 + number as usize) % values.len()];
                for arguments in
                    [[*value; 6], [next, *value, next, *value, *value, 0], [1, next, 0, 0, 0, 0]]
                {
                    let call = call(number, arguments);
                    let adds_listener = number == libc::SYS_seccomp as u32 && arguments[1] & 8 != 0;
                    let expected = match run(&plain, &call) {
                        _ if adds_listener => libc::SECCOMP_RET_ERRNO | libc::EBUSY as u32,
                        error if error & ACTION == libc::SECCOMP_RET_ERRNO => {
                            refused += 1;
                            NOTIFY
                        }
                        other => {
                            passed += 1;
                            other
                        }
                    };
                    assert_eq!(run(&traced, &call), expected, "{call:?}");
                }
            }
        }
        assert!(refused > 100_000 && passed > 100_000, "{refused} {passed}");
    }

    #[test]
    fn another_processor_mode_is_ended_and_not_reported() {
        let traced = traced(&COMMAND_PROGRAM.instructions());
        let other =
            CallData { arch: 0x4000_0003, ..call(libc::SYS_seccomp as u32, [1, 8, 0, 0, 0, 0]) };
        assert_eq!(run(&traced, &other), libc::SECCOMP_RET_KILL_PROCESS);
    }

    /// The code that a child ends with after it has set no-new-privileges.
    fn in_child(work: impl FnOnce() -> Result<i32, Errno>) -> i32 {
        match fork_with_threads().unwrap() {
            None => {
                let done = set_no_new_privs(true).and_then(|()| work());
                exit_now(done.unwrap_or(99))
            }
            Some(child) => {
                let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
                status.exit_status().unwrap()
            }
        }
    }

    fn mount() -> i32 {
        attempt::mount_tmpfs(c"/nonexistent").map_or_else(Errno::raw_os_error, |()| 0)
    }

    /// Why the errors are replaced, and no second filter is put on top.
    #[test]
    fn an_error_beats_a_notification_in_whichever_order_the_filters_come() {
        let plain = || COMMAND_PROGRAM.instructions();
        for traced_first in [true, false] {
            let code = in_child(|| {
                // Its listener is held and answers nothing: a notification would wait for ever.
                if !traced_first {
                    install(&plain())?;
                }
                let listener = install_with_listener(&traced(&plain()))?;
                if traced_first {
                    install(&plain())?;
                }
                let answer = mount();
                drop(listener);
                Ok(answer)
            });
            assert_eq!(code, libc::EPERM, "traced first: {traced_first}");
        }
    }

    #[test]
    fn without_a_listener_calls_are_refused_and_no_process_can_become_one() {
        // The control: without the guard, a process could listen to itself once ours is gone.
        let unguarded = in_child(|| {
            let whole = traced(&COMMAND_PROGRAM.instructions());
            drop(install_with_listener(&whole[no_other_listener().len()..])?);
            attempt::own_listener().map(|()| 0)
        });
        assert_eq!(unguarded, 0);
        let guarded = in_child(|| {
            drop(install_with_listener(&traced(&COMMAND_PROGRAM.instructions()))?);
            assert_or_exit(mount() == libc::ENOSYS, 1);
            Ok(attempt::own_listener().map_or_else(Errno::raw_os_error, |()| 0))
        });
        assert_eq!(guarded, libc::EBUSY);
    }

    /// In a child, where a panic would wait for the harness.
    fn assert_or_exit(holds: bool, code: i32) {
        if !holds {
            exit_now(code);
        }
    }

    #[test]
    fn a_second_listener_is_named_as_the_reason() {
        let code = in_child(|| {
            let other = [plain(RETURN, libc::SECCOMP_RET_ALLOW)];
            let _held = install_with_listener(&other)?;
            match crate::filter::load(crate::filter::TRACED) {
                Err(crate::filter::FilterError::OtherListener) => Ok(0),
                _ => Ok(1),
            }
        });
        assert_eq!(code, 0);
    }

    #[test]
    fn a_filter_of_the_runs_own_may_be_added_without_a_listener() {
        let traced = traced(&COMMAND_PROGRAM.instructions());
        for (flags, answer) in [(0, libc::SECCOMP_RET_ALLOW), (1, libc::SECCOMP_RET_ALLOW)] {
            let seccomp = call(libc::SYS_seccomp as u32, [1, flags, 0x1000, 0, 0, 0]);
            assert_eq!(run(&traced, &seccomp), answer, "{flags}");
        }
        for flags in [8, 9, 8 | 1 << 40] {
            let seccomp = call(libc::SYS_seccomp as u32, [1, flags, 0x1000, 0, 0, 0]);
            let busy = libc::SECCOMP_RET_ERRNO | libc::EBUSY as u32;
            assert_eq!(run(&traced, &seccomp), busy, "{flags}");
        }
    }
}
