//! Runs the program of the filter as the kernel does, to find the error that it gives a call.

use std::sync::OnceLock;

use rustix::io::Errno;

use super::COMMAND_PROGRAM;
use crate::sys::seccomp::{CallData, Instruction};

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ARGUMENTS_AT: usize = 4;

/// The error that a call under the plain filter gets. A call that was reported is always refused: where the program has
/// no error for it, which cannot be, it is EPERM.
pub(crate) fn refusal_errno(call: &CallData) -> Errno {
    static PROGRAM: OnceLock<Vec<Instruction>> = OnceLock::new();
    let answer = run(PROGRAM.get_or_init(|| COMMAND_PROGRAM.instructions()), call);
    match (answer & 0xffff_0000, answer & 0xffff) {
        (libc::SECCOMP_RET_ERRNO, errno @ 1..4096) => Errno::from_raw_os_error(errno as i32),
        _ => Errno::PERM,
    }
}

/// What the program returns. Jumps lead forward only, so it ends; a program that does not end in an answer, or has an
/// instruction that ours never have, ends the process, as far as this answer goes.
pub(super) fn run(program: &[Instruction], call: &CallData) -> u32 {
    let mut words = [0_u32; 16];
    (words[0], words[1]) = (call.number, call.arch);
    for (at, argument) in call.arguments.iter().enumerate() {
        words[ARGUMENTS_AT + 2 * at] = *argument as u32;
        words[ARGUMENTS_AT + 2 * at + 1] = (*argument >> 32) as u32;
    }
    let (mut at, mut value) = (0_usize, 0_u32);
    while let Some(step) = program.get(at) {
        let branch = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        at += 1;
        match step.code {
            LOAD => value = words.get(step.k as usize / 4).copied().unwrap_or_default(),
            AND => value &= step.k,
            JUMP => at = at.saturating_add(step.k as usize),
            IF_EQUAL => at += branch(value == step.k),
            IF_AT_LEAST => at += branch(value >= step.k),
            RETURN => return step.k,
            _ => break,
        }
    }
    libc::SECCOMP_RET_KILL_PROCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xc000_00b7;

    #[test]
    fn each_refused_call_has_the_error_of_the_filter() {
        let errno = |number: libc::c_long, arguments| {
            refusal_errno(&CallData { number: number as u32, arch: ARCH, arguments })
        };
        assert_eq!(errno(libc::SYS_mount, [0; 6]), Errno::PERM);
        assert_eq!(errno(libc::SYS_clone3, [0; 6]), Errno::NOSYS);
        assert_eq!(errno(libc::SYS_ioctl, [0, 0xae01, 0, 0, 0, 0]), Errno::NOTTY);
        assert_eq!(errno(libc::SYS_fcntl, [0, 1024, 0, 0, 0, 0]), Errno::INVAL);
        assert_eq!(errno(libc::SYS_socket, [16, 3, 9, 0, 0, 0]), Errno::PROTONOSUPPORT);
        assert_eq!(errno(libc::SYS_setsockopt, [3, 6, 31, 0, 0, 0]), Errno::NOPROTOOPT);
        // A call that the filter lets through is not reported; if it were, it would be refused.
        assert_eq!(errno(libc::SYS_read, [0; 6]), Errno::PERM);
    }
}
