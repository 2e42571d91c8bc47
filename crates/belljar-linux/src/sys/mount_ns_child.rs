//! Runs a function in a child process with a separate mount namespace.

use std::mem::MaybeUninit;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::check;

/// A child that has done its work. It ends by itself; dropping this waits until it is off the process table.
#[derive(Debug)]
pub struct MountNamespaceChild(Pid);

impl Drop for MountNamespaceChild {
    fn drop(&mut self) {
        let all = rustix::process::WaitOptions::empty();
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(self.0), all) {}
    }
}

/// Does `work` in a process with a separate mount namespace, which starts as a copy of this one's. It shares
/// this one's memory and descriptors, so what `work` opens stays open; this process continues when it is done.
///
/// Other threads do not matter: nothing is copied that they could be in the middle of.
pub fn in_new_mount_namespace<T>(
    work: impl FnOnce() -> T,
) -> Result<(T, MountNamespaceChild), Errno> {
    struct Task<W, T> {
        work: Option<W>,
        done: Option<T>,
    }
    extern "C" fn run<W: FnOnce() -> T, T>(task: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller passes a `Task<W, T>` that it leaves alone until this process has ended.
        let task = unsafe { &mut *task.cast::<Task<W, T>>() };
        task.done = task.work.take().map(|work| work());
        super::process::exit_now(0)
    }
    fn entry<W: FnOnce() -> T, T>(
        _: &Task<W, T>,
    ) -> extern "C" fn(*mut libc::c_void) -> libc::c_int {
        run::<W, T>
    }
    const STACK: usize = 512 * 1024;
    let mut stack: Vec<MaybeUninit<u8>> = Vec::with_capacity(STACK);
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end.map_addr(|at| at & !15);
    let mut task = Task { work: Some(work), done: None };
    let run = entry(&task);
    let flags =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_NEWNS | libc::SIGCHLD;
    // What a change of its ids does to the memory that both have must not outlast it.
    let dumpable = rustix::process::dumpable_behavior()?;
    let blocked = Blocked::all()?;
    // SAFETY: the stack is aligned and long enough, and it and `task` outlive the child: this thread stands
    // still until the child has ended (CLONE_VFORK), so that the two never run at the same time and share this
    // thread's thread-local memory like one. No signal handler runs in the child, since all are blocked.
    let raw = unsafe { libc::clone(run, top.cast(), flags, (&raw mut task).cast()) };
    let made = check(libc::c_long::from(raw));
    drop(blocked);
    let child = MountNamespaceChild(Pid::from_raw(made? as i32).ok_or(Errno::CHILD)?);
    rustix::process::set_dumpable_behavior(dumpable)?;
    // `None`: it was killed before it was done.
    task.done.map(|done| (done, child)).ok_or(Errno::INTR)
}

/// The ids that this process alone makes files with and looks at them with. Root keeps its rights.
pub fn act_on_files_as(uid: u32, gid: u32) -> Result<(), Errno> {
    let rights = rustix::thread::capabilities(None)?;
    // The answer is the id before, so it takes a second call to know.
    // SAFETY: the calls take numbers only.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX))
    };
    if now != (uid as i32, gid as i32) {
        return Err(Errno::PERM);
    }
    // The kernel took those over files away.
    rustix::thread::set_capabilities(None, rights)
}

/// Does `work` with the file rights of this user and group, and no more: root's rights are restored afterwards.
/// Supplementary groups stay.
pub fn look_at_files_as(uid: u32, gid: u32, work: impl FnOnce()) -> Result<(), Errno> {
    let rights = rustix::thread::capabilities(None)?;
    // SAFETY: the calls take numbers only.
    let before = unsafe { (libc::setfsuid(uid), libc::setfsgid(gid)) };
    // The change of ids takes them away from root alone, and not where the ids stay root's.
    let over_files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    let fewer = CapabilitySets { effective: rights.effective - over_files, ..rights };
    let done = rustix::thread::set_capabilities(None, fewer);
    if done.is_ok() {
        work();
    }
    // SAFETY: as above; the answers were ids.
    unsafe {
        libc::setfsgid(before.1 as u32);
        libc::setfsuid(before.0 as u32);
    }
    rustix::thread::set_capabilities(None, rights)?;
    done
}

/// All signals wait until this is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Result<Self, Errno> {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are room for one set, which the calls fill.
        let result = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
        };
        match result {
            // SAFETY: a call that succeeded has filled it.
            0 => Ok(Self(unsafe { before.assume_init() })),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
