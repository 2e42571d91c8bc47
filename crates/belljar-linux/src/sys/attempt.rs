//! Tries calls that must not work inside. Used by the attestation and by the attack cases.
//!
//! Each function makes one attempt with arguments that would do no lasting harm if it succeeded.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::check;

/// The kernel's result.
pub type Outcome = Result<(), Errno>;

fn raw(number: libc::c_long, args: [usize; 6]) -> Outcome {
    // SAFETY: private to this module; every caller below passes arguments whose pointers are null or
    // refer to live values of the size the call reads.
    let result =
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    check(result).map(|_| ())
}

fn descriptor(number: libc::c_long, args: [usize; 6]) -> Outcome {
    // SAFETY: as in `raw`.
    let result =
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    let fd = check(result)?;
    // SAFETY: the call just made this descriptor; dropping it closes it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// A new namespace of the given kind (`CLONE_NEW*`).
pub fn unshare(flags: i32) -> Outcome {
    raw(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0])
}

/// The same with all 64 bits of the argument: a filter that looks at 32 of them is fooled by the rest.
pub fn unshare_wide(flags: u64) -> Outcome {
    raw(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0])
}

/// A child in new namespaces, by the old `clone`; the child ends at once.
pub fn clone_flags(flags: u64) -> Outcome {
    let flags = flags | libc::SIGCHLD as u64;
    // SAFETY: no memory is shared and no stack is given: the child is a copy that only exits.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match check(result)? {
        0 => super::process::exit_now(0),
        child => {
            // SAFETY: a null status pointer is allowed.
            unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
            Ok(())
        }
    }
}

pub fn clone3_new_user() -> Outcome {
    // SAFETY: all-zero is a valid `clone_args`.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_NEWUSER as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `args` outlives the call; the child is a copy that only exits.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    match check(result)? {
        0 => super::process::exit_now(0),
        child => {
            // SAFETY: a null status pointer is allowed.
            unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
            Ok(())
        }
    }
}

pub fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome {
    descriptor(libc::SYS_socket, [domain as usize, kind as usize, protocol as usize, 0, 0, 0])
}

/// Mounts an empty tmpfs over a directory.
pub fn mount_tmpfs(target: &std::ffi::CStr) -> Outcome {
    raw(
        libc::SYS_mount,
        [c"none".as_ptr() as usize, target.as_ptr() as usize, c"tmpfs".as_ptr() as usize, 0, 0, 0],
    )
}

/// Makes a mount writable in place.
pub fn remount_writable(target: &std::ffi::CStr) -> Outcome {
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    raw(libc::SYS_mount, [0, target.as_ptr() as usize, 0, flags as usize, 0, 0])
}

pub fn unmount(target: &std::ffi::CStr) -> Outcome {
    raw(libc::SYS_umount2, [target.as_ptr() as usize, libc::MNT_DETACH as usize, 0, 0, 0, 0])
}

pub fn fsopen() -> Outcome {
    descriptor(libc::SYS_fsopen, [c"tmpfs".as_ptr() as usize, 0, 0, 0, 0, 0])
}

pub fn open_tree() -> Outcome {
    // With submounts: of a mount that has any, an ordinary user may not take less.
    const OPEN_TREE_CLONE: usize = 1 | libc::AT_RECURSIVE as usize;
    let cwd = libc::AT_FDCWD as usize;
    descriptor(libc::SYS_open_tree, [cwd, c"/".as_ptr() as usize, OPEN_TREE_CLONE, 0, 0, 0])
}

/// Takes the read-only mark off a mount.
pub fn mount_setattr(target: &std::ffi::CStr) -> Outcome {
    let attr = libc::mount_attr {
        attr_set: 0,
        attr_clr: libc::MOUNT_ATTR_RDONLY,
        propagation: 0,
        userns_fd: 0,
    };
    let cwd = libc::AT_FDCWD as usize;
    raw(
        libc::SYS_mount_setattr,
        [cwd, target.as_ptr() as usize, 0, &raw const attr as usize, size_of_val(&attr), 0],
    )
}

pub fn chroot() -> Outcome {
    raw(libc::SYS_chroot, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0])
}

pub fn ptrace_seize(pid: i32) -> Outcome {
    raw(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, pid as usize, 0, 0, 0, 0])
}

pub fn read_memory_of(pid: i32) -> Outcome {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: 0x40_0000 as *mut libc::c_void, iov_len: 1 };
    raw(
        libc::SYS_process_vm_readv,
        [pid as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0],
    )
}

/// Takes descriptor `number` out of another process.
pub fn steal_descriptor(pid: i32, number: i32) -> Outcome {
    // SAFETY: no pointer is passed.
    let pidfd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the call just made this descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    let pidfd = std::os::fd::AsRawFd::as_raw_fd(&pidfd) as usize;
    descriptor(libc::SYS_pidfd_getfd, [pidfd, number as usize, 0, 0, 0, 0])
}

pub fn add_key() -> Outcome {
    const SESSION: usize = -3_isize as usize;
    let (kind, name, value) = (c"user", c"belljar-probe", b"x");
    raw(
        libc::SYS_add_key,
        [kind.as_ptr() as usize, name.as_ptr() as usize, value.as_ptr() as usize, 1, SESSION, 0],
    )
}

pub fn keyctl() -> Outcome {
    const GET_KEYRING_ID: usize = 0;
    const SESSION: usize = -3_isize as usize;
    raw(libc::SYS_keyctl, [GET_KEYRING_ID, SESSION, 0, 0, 0, 0])
}

pub fn perf_event_open() -> Outcome {
    let mut attr = [0_u64; 16];
    attr[0] = (64 << 32) | 1; // type: software; size: the first published one
    descriptor(libc::SYS_perf_event_open, [attr.as_ptr() as usize, 0, usize::MAX, usize::MAX, 0, 0])
}

pub fn bpf() -> Outcome {
    let mut attr = [0_u32; 32];
    attr[..4].copy_from_slice(&[2, 4, 4, 1]); // an array map of one four-byte value
    descriptor(libc::SYS_bpf, [0, attr.as_ptr() as usize, size_of_val(&attr), 0, 0, 0])
}

pub fn io_uring() -> Outcome {
    let params = [0_u64; 15];
    descriptor(libc::SYS_io_uring_setup, [2, params.as_ptr() as usize, 0, 0, 0, 0])
}

pub fn userfaultfd() -> Outcome {
    descriptor(libc::SYS_userfaultfd, [0, 0, 0, 0, 0, 0])
}

/// Pushes a character into the terminal behind standard input, with the request as given.
pub fn ioctl(fd: i32, request: u64) -> Outcome {
    let byte = b'\n';
    raw(libc::SYS_ioctl, [fd as usize, request as usize, &raw const byte as usize, 0, 0, 0])
}

/// Calls that no sandbox needs, with arguments that do nothing where they are allowed.
pub fn administrative(name: &str) -> Option<Outcome> {
    let number = match name {
        "init_module" => libc::SYS_init_module,
        "finit_module" => libc::SYS_finit_module,
        "delete_module" => libc::SYS_delete_module,
        // Flags that do not exist: no segments alone would mean "unload".
        "kexec_load" => return Some(raw(libc::SYS_kexec_load, [0, 0, 0, 0xffff, 0, 0])),
        "reboot" => libc::SYS_reboot,
        "swapon" => libc::SYS_swapon,
        "swapoff" => libc::SYS_swapoff,
        "acct" => return Some(raw(libc::SYS_acct, [c"/nowhere".as_ptr() as usize, 0, 0, 0, 0, 0])),
        #[cfg(target_arch = "x86_64")]
        "iopl" => return Some(raw(libc::SYS_iopl, [3, 0, 0, 0, 0, 0])),
        #[cfg(target_arch = "x86_64")]
        "ioperm" => return Some(raw(libc::SYS_ioperm, [0x80, 1, 1, 0, 0, 0])),
        // 10: the size of the kernel's log.
        "syslog" => return Some(raw(libc::SYS_syslog, [10, 0, 0, 0, 0, 0])),
        "clock_settime" => libc::SYS_clock_settime,
        "settimeofday" => libc::SYS_settimeofday,
        "quotactl" => libc::SYS_quotactl,
        "sethostname" => return Some(raw(libc::SYS_sethostname, [0, 1000, 0, 0, 0, 0])),
        _ => return None,
    };
    // With no arguments each of these fails with another error once it gets past the permission.
    Some(raw(number, [0; 6]))
}

/// Makes a node with the given mode and device number.
pub fn make_node(path: &std::ffi::CStr, mode: u32, device: u64) -> Outcome {
    let cwd = libc::AT_FDCWD as usize;
    raw(libc::SYS_mknodat, [cwd, path.as_ptr() as usize, mode as usize, device as usize, 0, 0])
}

/// Creates a file with exactly these mode bits, through the given call.
pub fn create_with_mode(call: &str, path: &std::ffi::CStr, mode: u32) -> Option<Outcome> {
    let (at, cwd) = (path.as_ptr() as usize, libc::AT_FDCWD as usize);
    let flags = (libc::O_CREAT | libc::O_WRONLY) as usize;
    let mode = mode as usize;
    let outcome = match call {
        #[cfg(target_arch = "x86_64")]
        "open" => descriptor(libc::SYS_open, [at, flags, mode, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        "creat" => descriptor(libc::SYS_creat, [at, mode, 0, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        "chmod" => raw(libc::SYS_chmod, [at, mode, 0, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        "mkdir" => raw(libc::SYS_mkdir, [at, mode, 0, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        "mknod" => raw(libc::SYS_mknod, [at, libc::S_IFREG as usize | mode, 0, 0, 0, 0]),
        "openat" => descriptor(libc::SYS_openat, [cwd, at, flags, mode, 0, 0]),
        "openat2" => {
            let how = [flags as u64, mode as u64, 0];
            descriptor(libc::SYS_openat2, [cwd, at, how.as_ptr() as usize, size_of_val(&how), 0, 0])
        }
        "fchmodat" => raw(libc::SYS_fchmodat, [cwd, at, mode, 0, 0, 0]),
        "fchmodat2" => raw(libc::SYS_fchmodat2, [cwd, at, mode, 0, 0, 0]),
        "mkdirat" => raw(libc::SYS_mkdirat, [cwd, at, mode, 0, 0, 0]),
        "mknodat" => raw(libc::SYS_mknodat, [cwd, at, libc::S_IFREG as usize | mode, 0, 0, 0]),
        _ => return None,
    };
    Some(outcome)
}

pub fn fchmod(fd: i32, mode: u32) -> Outcome {
    raw(libc::SYS_fchmod, [fd as usize, mode as usize, 0, 0, 0, 0])
}

pub fn set_core_limit() -> Outcome {
    let limit = [u64::MAX, u64::MAX];
    raw(libc::SYS_prlimit64, [0, libc::RLIMIT_CORE as usize, limit.as_ptr() as usize, 0, 0, 0])
}

/// A file that exists only in memory; empty, and executable if the kernel lets it be.
pub fn memory_file(flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the name ends with a NUL and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_memfd_create, c"probe".as_ptr(), flags) };
    let fd = check(result)?;
    // SAFETY: the call just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Mounts a file system of the given type on a directory.
pub fn mount_type(
    kind: &std::ffi::CStr,
    target: &std::ffi::CStr,
    options: &std::ffi::CStr,
) -> Outcome {
    let [source, target, kind, options] =
        [c"none", target, kind, options].map(|text| text.as_ptr() as usize);
    raw(libc::SYS_mount, [source, target, kind, 0, options, 0])
}

pub fn move_mount() -> Outcome {
    let cwd = libc::AT_FDCWD as usize;
    let (from, to) = (c"/proc".as_ptr() as usize, c"/tmp".as_ptr() as usize);
    raw(libc::SYS_move_mount, [cwd, from, cwd, to, 0, 0])
}

pub fn fspick() -> Outcome {
    descriptor(libc::SYS_fspick, [libc::AT_FDCWD as usize, c"/proc".as_ptr() as usize, 0, 0, 0, 0])
}

/// A system call by number, with numbers for arguments: never a pointer to anything that is there.
///
/// Only numbers below the size of the first page and flags with high bits come here, so a call that
/// takes one of them for an address fails.
pub fn by_number(number: i64, args: [u64; 6]) -> Outcome {
    match number as libc::c_long {
        // The child would come back from the call and go on as a second copy of the caller.
        libc::SYS_clone => clone_flags(args[0]),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => Err(Errno::INVAL),
        number => raw(number, args.map(|arg| arg as usize)),
    }
}

/// A call in 32-bit mode: `getpid`, which does nothing.
#[cfg(target_arch = "x86_64")]
pub fn call_in_32_bit_mode() -> Outcome {
    const GETPID_OF_I386: u64 = 20;
    let result: u64;
    // SAFETY: `getpid` takes no argument and touches no memory. The kernel clears r8 to r11 on this
    // way in, and keeps all other registers but rax, which holds the result; rbx is not named because
    // the compiler keeps it for itself.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") GETPID_OF_I386 => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    check(i64::from(result as i32)).map(|_| ())
}

/// From here on this process does not notice that signal.
pub fn ignore_signal(signal: i32) {
    // SAFETY: no handler of ours is installed, only the kernel's own "ignore".
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Truncates the file that a descriptor refers to.
pub fn truncate_descriptor(fd: i32) -> Outcome {
    raw(libc::SYS_ftruncate, [fd as usize, 0, 0, 0, 0, 0])
}

/// Writes at the very beginning of the file that a descriptor refers to.
pub fn write_at_start(fd: i32, bytes: &[u8]) -> Outcome {
    raw(libc::SYS_pwrite64, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0])
}

/// Writes to a descriptor that may not be open at all.
pub fn write_to(fd: i32, bytes: &[u8]) -> Outcome {
    raw(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0])
}

/// Gives loopback another address. For networks that a test has made for itself.
pub fn add_loopback_address(address: std::net::IpAddr) -> Outcome {
    const LOOPBACK: libc::c_int = 1; // the first interface of every network namespace
    // SAFETY: each request below is all zero but for what is filled in, and outlives its call; the
    // socket is closed by its owner.
    unsafe {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = check(libc::c_long::from(libc::socket(
            family,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        )))?;
        let socket = OwnedFd::from_raw_fd(socket as i32);
        let socket = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let result = match address {
            std::net::IpAddr::V4(address) => {
                let mut request: libc::ifreq = std::mem::zeroed();
                for (to, from) in request.ifr_name.iter_mut().zip(b"lo:1") {
                    *to = *from as libc::c_char;
                }
                let mut wanted: libc::sockaddr_in = std::mem::zeroed();
                wanted.sin_family = libc::AF_INET as libc::sa_family_t;
                wanted.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
                // A `sockaddr_in` is as large as the `sockaddr` that it stands for here.
                request.ifr_ifru.ifru_addr =
                    std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(wanted);
                libc::ioctl(socket, libc::SIOCSIFADDR, &raw const request)
            }
            std::net::IpAddr::V6(address) => {
                let wanted = libc::in6_ifreq {
                    ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
                    ifr6_prefixlen: 128,
                    ifr6_ifindex: LOOPBACK,
                };
                libc::ioctl(socket, libc::SIOCSIFADDR, &raw const wanted)
            }
        };
        check(libc::c_long::from(result)).map(|_| ())
    }
}

/// Changes the first byte of a file through memory that is shared with it: the kernel does not see a
/// write then, and takes no setuid bit away.
pub fn write_by_mapping(file: &OwnedFd, byte: u8) -> Outcome {
    const LENGTH: usize = 1;
    let fd = std::os::fd::AsRawFd::as_raw_fd(file);
    // SAFETY: a new mapping where the kernel likes it, of one page at most; only its first byte is
    // touched, callers pass a file that has one, and nothing refers to it after it is unmapped.
    unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), LENGTH, flags, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED {
            return Err(super::last_error());
        }
        at.cast::<u8>().write_volatile(byte);
        let synced = check(libc::c_long::from(libc::msync(at, LENGTH, libc::MS_SYNC)));
        libc::munmap(at, LENGTH);
        synced.map(|_| ())
    }
}

/// Sets a limit of another process to what it is now, so that nothing changes if it works.
pub fn set_limit_of(pid: i32, resource: u32) -> Outcome {
    let mut now = [0_u64; 2];
    let (pid, resource) = (pid as usize, resource as usize);
    raw(libc::SYS_prlimit64, [pid, resource, 0, &raw mut now as usize, 0, 0])?;
    raw(libc::SYS_prlimit64, [pid, resource, &raw const now as usize, 0, 0, 0])
}

/// A request of ioctl, on no descriptor at all.
pub fn ioctl_on_nothing(request: u32) -> Outcome {
    raw(libc::SYS_ioctl, [usize::MAX, request as usize, 0, 0, 0, 0])
}

/// A call with a number that no kernel has.
pub fn unknown_call(number: u32) -> Outcome {
    raw(number as libc::c_long, [0; 6])
}

/// Adds a filter that reports `mount` to a listener of this process's own, which could let it through.
pub fn own_listener() -> Outcome {
    use super::seccomp::{Instruction, install_with_listener};
    let step = |code, jf, k| Instruction { code, jt: 0, jf, k };
    install_with_listener(&[
        step(0x20, 0, 0), // the number
        step(0x15, 1, libc::SYS_mount as u32),
        step(0x06, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(0x06, 0, libc::SECCOMP_RET_ALLOW),
    ])
    .map(drop)
}
