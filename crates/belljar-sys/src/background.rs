//! Continues in a copy of this process that has left the program that started it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::errno::check;
use crate::{close_from, signal};

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Caller,
    Background,
}

/// Whether this process has one thread. Without `/proc` the answer is not known, and a caller that does not know it
/// does not fork.
pub fn is_single_threaded() -> bool {
    rustix::fs::stat("/proc/self/task").is_ok_and(|task| task.st_nlink == 3)
}

/// Forks. The copy holds nothing of the caller's: a session of its own, `/` as its working directory, `/dev/null` as
/// its standard streams, and of all other descriptors only `keep`, at the number it had. The kernel ends it after
/// `limit`. It must end by [`exit_now`], since nothing that was meant for the original may run in it.
///
/// Fails where there are other threads, whose locks the copy would hold for ever, and in PID 1 of a namespace, with
/// which the copy would be killed.
pub fn fork_to_background(keep: BorrowedFd<'_>, limit: Duration) -> Result<Side, Errno> {
    if !is_single_threaded() || std::process::id() == 1 {
        return Err(Errno::BUSY);
    }
    // SAFETY: there is no other thread, so the copy may use everything it has.
    if check(libc::c_long::from(unsafe { libc::fork() }))? != 0 {
        return Ok(Side::Caller);
    }
    if leave_caller(keep, limit).is_err() {
        exit_now(1);
    }
    Ok(Side::Background)
}

fn leave_caller(keep: BorrowedFd<'_>, limit: Duration) -> Result<(), Errno> {
    // First: the end of the caller, if it leads the session of a terminal, sends a hang-up. What the caller blocked
    // stays blocked.
    let _ = rustix::process::setsid(); // a process that was just forked leads no group
    signal::restore(libc::SIGALRM)?;
    let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).max(1);
    // SAFETY: no pointer is passed; the signal's default, which was just restored, ends the process.
    unsafe { libc::alarm(seconds) };
    rustix::process::chdir("/")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::mem::forget(null); // closed with the rest
    let kept = keep.as_raw_fd();
    close_between(3, kept)?;
    close_from(kept + 1)
}

/// All descriptors from the first number up to, and without, the last.
fn close_between(first: i32, past: i32) -> Result<(), Errno> {
    if first >= past {
        return Ok(());
    }
    let (first, last) = (first as libc::c_uint, (past - 1) as libc::c_uint);
    // SAFETY: no pointer is passed. What had these numbers is not used by this process again: it ends by `exit_now`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(|_| ())
}

/// Ends a forked copy of a process without running anything that was meant for the original.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes no pointer and does not return.
    unsafe { libc::_exit(code) }
}
