//! Loads system call filters that were compiled when the program was built, and answers for a filter that asks.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use super::check;

/// One compiled program: eight bytes an instruction, in the machine's byte order.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static [u8]);

impl Program {
    pub fn instructions(self) -> Vec<Instruction> {
        let instruction = |raw: &[u8]| Instruction {
            code: u16::from_ne_bytes([raw[0], raw[1]]),
            jt: raw[2],
            jf: raw[3],
            k: u32::from_ne_bytes([raw[4], raw[5], raw[6], raw[7]]),
        };
        self.0.chunks_exact(8).map(instruction).collect()
    }
}

/// As the kernel reads it.
pub type Instruction = libc::sock_filter;

/// Puts the filter in force for this process and all its descendants. Needs no-new-privileges.
pub fn install(program: &[Instruction]) -> Result<(), Errno> {
    set_filter(program, 0).map(|_| ())
}

/// The same for a filter that answers some calls with SECCOMP_RET_USER_NOTIF. Whoever has the descriptor answers them;
/// when nobody has it any more, the kernel answers ENOSYS.
pub fn install_with_listener(program: &[Instruction]) -> Result<OwnedFd, Errno> {
    let raw = set_filter(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let raw = RawFd::try_from(raw).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel made this descriptor for us, in this call. It is closed at an `exec`.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn set_filter(program: &[Instruction], flags: libc::c_ulong) -> Result<libc::c_long, Errno> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `length` instructions from a slice that outlives the call and does
    // not write to it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    check(result)
}

/// A system call as a filter sees it: numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallData {
    pub number: u32,
    pub arch: u32,
    pub arguments: [u64; 6],
}

/// A call that waits for its answer.
#[derive(Debug)]
pub struct WaitingCall {
    id: u64,
    pub data: CallData,
}

/// The next call that waits. Blocks where there is none, so only after `poll` has reported one. ENOENT: its process is
/// gone, or was interrupted and makes the call again.
pub fn receive(listener: BorrowedFd<'_>) -> Result<WaitingCall, Errno> {
    // SAFETY: all-zero is a valid `seccomp_notif`, and the kernel demands it.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one `seccomp_notif`, whose size is part of its number.
    let result = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice)
    };
    check(libc::c_long::from(result))?;
    let libc::seccomp_data { nr, arch, args, .. } = notice.data;
    let data = CallData { number: nr.cast_unsigned(), arch, arguments: args };
    Ok(WaitingCall { id: notice.id, data })
}

/// The only answer there is: an error. This code has no way to let a call through, which the kernel would allow with
/// SECCOMP_USER_NOTIF_FLAG_CONTINUE. ENOENT: as in [`receive`].
pub fn refuse(listener: BorrowedFd<'_>, call: WaitingCall, errno: Errno) -> Result<(), Errno> {
    let mut response =
        libc::seccomp_notif_resp { id: call.id, val: 0, error: -errno.raw_os_error(), flags: 0 };
    // SAFETY: the request reads one `seccomp_notif_resp`, whose size is part of its number.
    let result = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
    };
    check(libc::c_long::from(result)).map(|_| ())
}
