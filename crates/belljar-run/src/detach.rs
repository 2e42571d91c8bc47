//! Detaches a process of belljar from the program that started it: signals, descriptors, session, working directory.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, getppid, setpgid};

/// Gives the process its own session, so that a hang-up of the caller's terminal and a signal to its group do not reach
/// it. Returns the connection on descriptor 0, which is `/dev/null` then, so that nothing takes it for input.
pub(crate) fn detach_from_caller() -> Result<OwnedFd, Errno> {
    // What the caller had blocked, ignored or left open does not count here.
    belljar_sys::signal::reset_all()?;
    belljar_sys::signal::ignore_broken_pipe();
    belljar_sys::close_from(3)?;
    // The leader of a group cannot begin a session, and some programs start this process as one.
    if let Some(group) = group_of_parent() {
        let _ = setpgid(None, Some(group));
    }
    let _ = rustix::process::setsid(); // fails only where it is one already
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::chdir("/")?;
    let connection = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(connection)
}

/// `None` where it is in another pid namespace, and has no number here. Read from /proc: rustix takes the kernel's
/// answer 0 for impossible.
fn group_of_parent() -> Option<Pid> {
    let parent = getppid()?.as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).ok()?;
    // The name before it can hold anything: state, parent and group follow its last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_whitespace().nth(2)?.parse().ok()?)
}
