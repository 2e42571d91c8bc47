//! Makes calls that use up what the kernel counts for a user, or that reach past a sandbox by an argument. Used by
//! the attack cases only.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::attempt::Outcome;
use super::check;

/// A timer, which holds a pending signal until its process ends.
pub fn timer() -> Outcome {
    let mut id: libc::c_int = 0;
    // SAFETY: a null event asks for the default one; the kernel writes the id, which is as large as it expects.
    let result = unsafe {
        libc::syscall(
            libc::SYS_timer_create,
            libc::CLOCK_MONOTONIC,
            std::ptr::null::<u8>(),
            &raw mut id,
        )
    };
    check(result).map(drop)
}

/// A message queue with room for some messages, by a name that is gone again at once.
pub fn message_queue(name: &CStr) -> Result<OwnedFd, Errno> {
    // Flags, most messages, their size, present messages; the rest is the kernel's.
    let attributes: [libc::c_long; 8] = [0, 10, 8192, 0, 0, 0, 0, 0];
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: name and attributes outlive the call, and have the form it reads.
    let result = unsafe {
        libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600, attributes.as_ptr())
    };
    let made = check(result)?;
    // SAFETY: the call just made this descriptor.
    let queue = unsafe { OwnedFd::from_raw_fd(made as i32) };
    // SAFETY: the name outlives the call.
    check(unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) })?;
    Ok(queue)
}

/// Shared memory that cannot be swapped. Goes away with the last process that has it.
pub fn locked_memory(bytes: usize) -> Outcome {
    // SAFETY: numbers only.
    let id = check(unsafe {
        libc::c_long::from(libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | 0o600))
    })? as i32;
    // SAFETY: the kernel chooses the place, and nothing is ever read or written there.
    let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    // SAFETY: the command takes no pointer.
    let locked = check(unsafe {
        libc::c_long::from(libc::shmctl(id, libc::SHM_LOCK, std::ptr::null_mut()))
    });
    // SAFETY: as above; it is ours, and goes when we do.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    if locked.is_err() && at as isize != -1 {
        // SAFETY: what was attached just now, to which nothing refers.
        unsafe { libc::shmdt(at) };
    }
    locked.map(drop)
}

/// A read lease: a process that opens the file to write waits until the lease is returned.
pub fn read_lease(file: BorrowedFd<'_>) -> Outcome {
    // SAFETY: the command takes a number.
    check(unsafe {
        libc::c_long::from(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK))
    })
    .map(drop)
}

/// Sets the attribute "not in backups" of a file, as `chattr +d` does.
pub fn file_attribute(file: BorrowedFd<'_>) -> Outcome {
    const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
    const NO_DUMP: libc::c_long = 0x40;
    let flags: libc::c_long = NO_DUMP;
    // SAFETY: the kernel reads a long, which this is.
    check(unsafe {
        libc::c_long::from(libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS as _, &raw const flags))
    })
    .map(drop)
}

/// The usual line discipline, once more: a terminal that has it is not changed.
pub fn line_discipline(terminal: BorrowedFd<'_>) -> Outcome {
    let usual: libc::c_int = 0;
    // SAFETY: the kernel reads an int, which this is.
    check(unsafe {
        libc::c_long::from(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSETD, &raw const usual))
    })
    .map(drop)
}

/// An option of a new socket.
pub fn socket_option(kind: i32, level: i32, name: i32, value: &[u8]) -> Outcome {
    // SAFETY: numbers only.
    let made = check(libc::c_long::from(unsafe {
        libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0)
    }))?;
    // SAFETY: the call just made this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(made as i32) };
    // SAFETY: the value outlives the call, and its length is passed.
    check(libc::c_long::from(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    }))
    .map(drop)
}
