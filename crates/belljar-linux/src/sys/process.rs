//! Makes processes and replaces them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

pub use belljar_sys::background::exit_now;
use belljar_sys::background::is_single_threaded;

use super::{check, last_error};

bitflags_like! {
    /// Which namespaces a new process gets, and which process is its parent.
    CloneFlags: u64 {
        NEW_USER = libc::CLONE_NEWUSER,
        NEW_MOUNT = libc::CLONE_NEWNS,
        NEW_PID = libc::CLONE_NEWPID,
        NEW_IPC = libc::CLONE_NEWIPC,
        NEW_UTS = libc::CLONE_NEWUTS,
        NEW_CGROUP = libc::CLONE_NEWCGROUP,
        SAME_PARENT = libc::CLONE_PARENT,
    }
}

/// As in linux/sched.h: libc's constant has too few bits.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A child process. The descriptor refers to it even when its number is used again.
#[derive(Debug)]
pub struct Child {
    pub pid: Pid,
    pub pidfd: OwnedFd,
}

#[derive(Debug)]
pub enum Forked {
    Parent(Child),
    Child,
}

/// `clone3` with a copy of this process's memory.
///
/// Refused where other threads exist: the copy would hold their locks for ever. Only a
/// single-threaded launcher comes here.
pub fn clone(flags: CloneFlags) -> Result<Forked, Errno> {
    clone_into(flags, None)
}

/// The same; the child begins in that control group (of version 2), if one is given.
pub fn clone_into(flags: CloneFlags, group: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    if !is_single_threaded() {
        return Err(Errno::BUSY);
    }
    let mut pidfd: RawFd = -1;
    let mut exit_signal = libc::SIGCHLD as u64;
    if flags.contains(CloneFlags::SAME_PARENT) {
        // The kernel takes the signal from the caller then, and refuses one here.
        exit_signal = 0;
    }
    // SAFETY: all-zero is a valid `clone_args`; it means "fork, nothing shared".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags.bits() | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = exit_signal;
    if let Some(group) = group {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: `args` and `pidfd` outlive the call. No memory is shared and no stack is given, so the
    // child continues on its own copy of this one; there is no other thread whose state it could miss.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    match check(result)? {
        0 => Ok(Forked::Child),
        raw => {
            // SAFETY: the kernel made this descriptor for us, in this call.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = Pid::from_raw(raw as i32).ok_or(Errno::CHILD)?;
            Ok(Forked::Parent(Child { pid, pidfd }))
        }
    }
}

/// A process in a new user namespace that does nothing until it is killed. It shares this one's
/// memory, so making it copies nothing.
#[derive(Debug)]
pub struct Sleeper {
    pub pid: Pid,
    /// The kernel runs the sleeper on it, so it lives as long.
    _stack: Vec<u8>,
}

impl Sleeper {
    pub fn in_new_user_namespace() -> Result<Self, Errno> {
        extern "C" fn sleep(parent: *mut libc::c_void) -> libc::c_int {
            // SAFETY: plain system calls, which touch no memory but the shared errno, and that the parent
            // reads only after calls of its own.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // If the parent died before that, no signal comes.
                while libc::getppid() as usize == parent.addr() {
                    libc::pause();
                }
                libc::_exit(0)
            }
        }
        const STACK: usize = 16 * 1024;
        let mut stack = vec![0_u8; STACK];
        let top = stack.as_mut_ptr_range().end.map_addr(|at| at & !15);
        let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::SIGCHLD;
        let parent = std::ptr::without_provenance_mut(std::process::id() as usize);
        // SAFETY: the stack is as long as `sleep` needs, aligned, and lives until the sleeper is dropped,
        // which ends it first. `sleep` uses no lock, allocation or thread-local but errno.
        let raw = unsafe { libc::clone(sleep, top.cast(), flags, parent) };
        let pid = Pid::from_raw(check(libc::c_long::from(raw))? as i32).ok_or(Errno::CHILD)?;
        Ok(Self { pid, _stack: stack })
    }
}

impl Sleeper {
    /// It ends while this process does something else; dropping it waits for that.
    pub fn kill(&self) {
        // It is our unreaped child, so the pid is still valid.
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.kill();
        while let Err(Errno::INTR) =
            rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty())
        {
        }
    }
}

/// Plain `fork`, for PID 1: works where an engine's filter or gVisor has no `clone3`.
pub fn fork() -> Result<Option<Pid>, Errno> {
    if !is_single_threaded() {
        return Err(Errno::BUSY);
    }
    // SAFETY: there is no other thread, so the child may use everything it has a copy of.
    let raw = check(libc::c_long::from(unsafe { libc::fork() }))?;
    Ok(Pid::from_raw(raw as i32))
}

/// For tests, whose harness has threads: the child has only the calling thread, with its ids and capabilities.
#[cfg(test)]
pub(crate) fn fork_with_threads() -> Result<Option<Pid>, Errno> {
    // SAFETY: libc makes its allocator usable in the child. The child uses no lock that the harness's other thread,
    // which waits for this one, could hold, and ends without returning from the test.
    let raw = check(libc::c_long::from(unsafe { libc::fork() }))?;
    Ok(Pid::from_raw(raw as i32))
}

/// What a process used, with all the children that it reaped, and what those had reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub cpu_ms: u64,
    /// Of the largest single process.
    pub memory_peak_bytes: u64,
}

/// Waits for a child's end and reaps it. An error: it is not a child any more.
pub fn reap(child: Pid) -> Result<Used, Errno> {
    // SAFETY: all-zero is a valid `rusage`.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let number = child.as_raw_nonzero().get();
    loop {
        // SAFETY: a null status is allowed, and the kernel writes one `rusage` into `used`.
        let result = unsafe { libc::wait4(number, std::ptr::null_mut(), 0, &raw mut used) };
        match check(libc::c_long::from(result)) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let ms = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    Ok(Used {
        cpu_ms: ms(used.ru_utime) + ms(used.ru_stime),
        memory_peak_bytes: used.ru_maxrss as u64 * 1024,
    })
}

/// Replaces this process by the program behind a descriptor. Returns only on failure.
pub fn exec_descriptor(program: BorrowedFd<'_>, argv: &[CString], env: &[CString]) -> Errno {
    let argv = null_terminated(argv);
    let env = null_terminated(env);
    // SAFETY: both lists end with null and point into vectors that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    last_error()
}

/// Replaces this process by the program at a path. Returns only on failure.
pub fn exec_path(program: &CStr, argv: &[CString], env: &[CString]) -> Errno {
    let argv = null_terminated(argv);
    let env = null_terminated(env);
    // SAFETY: as in `exec_descriptor`.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    last_error()
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Makes this process the leader of a new session.
pub fn begin_session() -> Result<(), Errno> {
    // SAFETY: the call takes nothing. `rustix` insists on a number in the answer, and gVisor gives none.
    check(libc::c_long::from(unsafe { libc::setsid() })).map(|_| ())
}

/// Whether this process leads its session. The kernel reports 0 for a leader outside the pid namespace.
pub fn leads_session() -> bool {
    // SAFETY: no pointer is passed.
    let session = unsafe { libc::getsid(0) };
    u32::try_from(session).is_ok_and(|session| session == std::process::id())
}

/// Gives descriptors fixed numbers, in order, from `first` on, and lets them pass an `exec`.
/// Everything above is closed.
pub fn arrange_descriptors(first: RawFd, wanted: Vec<OwnedFd>) -> Result<(), Errno> {
    let past = first + wanted.len() as RawFd;
    // Away from the target numbers first, or one could overwrite another that is still needed.
    let mut parked = Vec::with_capacity(wanted.len());
    for fd in wanted {
        parked.push(rustix::io::fcntl_dupfd_cloexec(&fd, past)?);
    }
    for (at, fd) in (first..).zip(&parked) {
        // SAFETY: whatever had this number is not used by this process again: it is about to
        // become another program.
        check(libc::c_long::from(unsafe { libc::dup3(fd.as_raw_fd(), at, 0) }))?;
    }
    belljar_sys::close_from(past)?;
    std::mem::forget(parked); // closed just now
    Ok(())
}

/// Takes over a descriptor that this process was started with.
pub fn adopt_descriptor(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: nothing is read through it before the check below has shown that it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and callers adopt each number once, at start, before anything else could
    // have made a descriptor with that number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The program that this process runs, whatever happened to its path meanwhile.
pub fn current_executable() -> std::io::Result<OwnedFd> {
    File::open("/proc/self/exe").map(OwnedFd::from)
}

/// A new session keyring: keys of the caller's session stay behind.
pub fn new_session_keyring() -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring; no pointer is read.
    let result =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) };
    check(result).map(|_| ())
}

/// Whether a descriptor of this number is open and would still be after an `exec`.
pub fn survives_exec(number: RawFd) -> bool {
    // SAFETY: F_GETFD takes no pointer; a number that is not open is an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}
