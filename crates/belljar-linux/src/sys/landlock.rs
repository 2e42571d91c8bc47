//! Finds out how many Landlock rule sets are in force, which the kernel does not report.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::check;

/// As in linux/landlock.h.
const ACCESS_FS_MAKE_BLOCK: u64 = 1 << 11;

/// How many of `most` further rule sets this process could put on itself. A child tries it, since none can be removed;
/// it shares this process's memory, so making it copies nothing.
pub fn layers_left(most: i32) -> Result<i32, Errno> {
    let trial = Trial { ruleset: new_ruleset()?, most };
    extern "C" fn add_all(trial: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it points to the parent's `trial`, which lives until this process has exited; nobody writes to it.
        let Trial { ruleset, most } = unsafe { &*trial.cast_const().cast::<Trial>() };
        let restrict = || {
            // SAFETY: a plain system call without a pointer; errno is the parent's, which waits meanwhile.
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }
        };
        let mut added = 0;
        while added < *most && restrict() == 0 {
            added += 1;
        }
        // SAFETY: `_exit` does not return, and runs nothing of the parent's.
        unsafe { libc::_exit(added) }
    }
    const STACK: usize = 16 * 1024;
    let mut stack = vec![0_u8; STACK];
    let top = stack.as_mut_ptr_range().end.map_addr(|at| at & !15);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is as long as `add_all` needs, aligned, and lives longer than the child, for whose exit the
    // kernel has this process wait. `add_all` uses no lock, allocation or thread-local but errno.
    let raw =
        unsafe { libc::clone(add_all, top.cast(), flags, (&raw const trial).cast_mut().cast()) };
    let child = Pid::from_raw(check(libc::c_long::from(raw))? as i32).ok_or(Errno::CHILD)?;
    let ended = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    ended.and_then(|(_, status)| status.exit_status()).ok_or(Errno::CHILD)
}

struct Trial {
    ruleset: OwnedFd,
    most: i32,
}

/// One that refuses a call that nobody inside can make anyway.
fn new_ruleset() -> Result<OwnedFd, Errno> {
    let handled: u64 = ACCESS_FS_MAKE_BLOCK;
    // SAFETY: the kernel reads `handled`, which is as long as it is said to be.
    let raw = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size_of_val(&handled),
            0,
        )
    };
    // SAFETY: the kernel made this descriptor for us, in this call.
    check(raw).map(|raw| unsafe { OwnedFd::from_raw_fd(raw as i32) })
}
