//! Makes a run's user and network namespace in a process of its own, while the launcher does other work.
//!
//! The network namespace is the dearest part of a sandbox. Nothing has to be known of the run to make it, so it is made
//! on another processor while the launcher opens the run's sources.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open,
    set_parent_process_death_signal, waitid, waitpid,
};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, futex, move_into_thread_name_spaces};

use super::check;

/// What a busy machine may need; then the launch is refused.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// How far the process has come; any other number is the error of a step.
const WORKING: u32 = u32::MAX;
const READY: u32 = 0;

/// The process and its two namespaces. It does nothing but wait once they are made; dropping this ends it, and the
/// kernel ends it with the launcher.
#[derive(Debug)]
pub struct PodNamespaces {
    pub pid: Pid,
    pidfd: OwnedFd,
    /// On the heap, since the process writes to it wherever this value has moved.
    shared: Box<Shared>,
    /// The kernel runs the process on it, so it lives as long.
    _stack: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    launcher: Option<Pid>,
    state: AtomicU32,
}

impl PodNamespaces {
    /// Returns at once. The process shares this one's memory, so making it copies nothing.
    pub fn begin() -> Result<Self, Errno> {
        const STACK: usize = 16 * 1024;
        let state = AtomicU32::new(WORKING);
        let shared = Box::new(Shared { launcher: Some(rustix::process::getpid()), state });
        let mut stack = vec![0_u8; STACK];
        let top = stack.as_mut_ptr_range().end.map_addr(|at| at & !15);
        let argument = std::ptr::from_ref::<Shared>(&shared).cast_mut();
        let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::SIGCHLD;
        // SAFETY: the stack is as long as `make_and_wait` needs, aligned, and lives with what is shared until this value is
        // dropped, which ends the process first. It uses no lock and no allocation, and touches no thread-local:
        // `rustix` makes its calls without errno.
        let raw = unsafe { libc::clone(make_and_wait, top.cast(), flags, argument.cast()) };
        let pid = Pid::from_raw(check(libc::c_long::from(raw))? as i32).ok_or(Errno::CHILD)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { pid, pidfd, shared, _stack: stack }),
            Err(error) => {
                end(pid); // before its stack goes
                Err(error)
            }
        }
    }

    /// Until both namespaces are made, loopback is up, and any port can be listened on, as in a container: nothing
    /// else lives in this network.
    pub fn wait(&self) -> Result<(), Errno> {
        let by = Instant::now() + READY_TIMEOUT;
        loop {
            match self.shared.state.load(Ordering::Acquire) {
                READY => return Ok(()),
                WORKING if Instant::now() >= by => return Err(Errno::TIMEDOUT),
                WORKING => {}
                error => return Err(Errno::from_raw_os_error(error as i32)),
            }
            // Now and then, since it may have been killed.
            let moment = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = futex::wait(&self.shared.state, futex::Flags::PRIVATE, WORKING, Some(&moment));
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            if self.shared.state.load(Ordering::Acquire) == WORKING
                && !matches!(waitid(WaitId::Pid(self.pid), ended), Ok(None))
            {
                return Err(Errno::CHILD);
            }
        }
    }

    pub fn process(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for PodNamespaces {
    fn drop(&mut self) {
        end(self.pid);
    }
}

/// It is our unreaped child, so the pid is still valid.
fn end(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
    while let Err(Errno::INTR) = waitpid(Some(pid), WaitOptions::empty()) {}
}

/// Moves this process to the two namespaces of that one.
pub fn join(process: BorrowedFd<'_>) -> Result<(), Errno> {
    let both = ThreadNameSpaceType::USER | ThreadNameSpaceType::NETWORK;
    move_into_thread_name_spaces(process, both)
}

extern "C" fn make_and_wait(shared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it points to what the launcher's `PodNamespaces` shares, which outlives this process.
    let Shared { launcher, state } = unsafe { &*shared.cast_const().cast::<Shared>() };
    let reached = match make() {
        Ok(()) => READY,
        Err(error) => error.raw_os_error() as u32,
    };
    state.store(reached, Ordering::Release);
    let _ = futex::wake(state, futex::Flags::PRIVATE, 1);
    // A launcher that died before it was asked to take this process along sends no signal.
    while rustix::process::getppid() == *launcher {
        // Nobody writes to it again, so this ends with the process; a signal only has it look and wait again.
        let _ = futex::wait(state, futex::Flags::PRIVATE, reached, None);
    }
    super::process::exit_now(0)
}

fn make() -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // SAFETY: descriptors are not concerned.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    super::net::loopback_up()?;
    let path = c"/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, b"0").map(|_| ())
}
