//! Reads signals from a descriptor, and resets the signal state for a new program.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::errno::{check, last_error};

/// Blocks these signals and returns a descriptor on which they are read instead.
pub fn read_instead(signals: &[i32]) -> Result<OwnedFd, Errno> {
    let set = set_of(signals);
    // SAFETY: `set` is initialised and outlives both calls; a null old set is allowed.
    unsafe {
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(last_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(libc::c_long::from(fd))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Blocks every signal that can be blocked.
pub fn block_all() -> Result<(), Errno> {
    // SAFETY: `sigfillset` initialises the whole set, which outlives the call; a null old set is allowed.
    let result = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    check(libc::c_long::from(result)).map(|_| ())
}

/// The next signal that arrived, if one did.
pub fn next(signals: &OwnedFd) -> Result<Option<i32>, Errno> {
    // SAFETY: all-zero is a valid `signalfd_siginfo`.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size of `info` into it.
    let got = unsafe {
        libc::read(signals.as_raw_fd(), (&raw mut info).cast(), size_of::<libc::signalfd_siginfo>())
    };
    match check(got as libc::c_long) {
        Ok(_) => Ok(Some(info.ssi_signo as i32)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every signal unblocked and at its default, as a new program expects it.
pub fn reset_all() -> Result<(), Errno> {
    let none = set_of(&[]);
    let default = [0_u64; 4]; // the kernel's own structure: handler, flags, restorer, mask
    // SAFETY: the kernel reads the structure, which outlives the call; setting a signal to its default
    // runs no code of ours. By number and not through the C library, which keeps 32 and 33 to itself.
    // Signals that cannot be changed return an error, which is ignored here.
    unsafe {
        for signal in 1..=64 {
            let nothing = std::ptr::null::<u8>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), nothing, 8_usize);
        }
        let result = libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        check(libc::c_long::from(result)).map(|_| ())
    }
}

/// One signal unblocked and at its default.
pub fn restore(signal: i32) -> Result<(), Errno> {
    let set = set_of(&[signal]);
    // SAFETY: `set` is initialised and outlives the call, a null old set is allowed, and the default runs no code of ours.
    let result = unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
    };
    check(libc::c_long::from(result)).map(|_| ())
}

/// Rust starts programs with this ignored; a write to a closed pipe should be an error here too,
/// and the default where a program expects it.
pub fn ignore_broken_pipe() {
    // SAFETY: no handler of ours is installed, only the kernel's own "ignore".
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: `sigemptyset` initialises the whole set before anything reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Signals every process that the caller may signal, itself left out.
pub fn send_to_all(signal: i32) -> Result<(), Errno> {
    // SAFETY: `kill` takes no pointer. Only PID 1 of a sandbox comes here, where "all" is the sandbox.
    let result = unsafe { if libc::getpid() == 1 { libc::kill(-1, signal) } else { -1 } };
    check(libc::c_long::from(result)).map(|_| ())
}
