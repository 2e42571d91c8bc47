//! The `unsafe` code of the jail and PID 1: system calls that `rustix` does not have, each behind a function that is
//! safe to call. What every backend needs of that kind is in `belljar-sys`.
#![allow(unsafe_code)]

pub mod attempt;
pub mod landlock;
pub mod mount;
pub mod mount_ns_child;
pub mod net;
pub mod pod_namespaces;
pub mod process;
pub mod seccomp;
pub mod take;

use rustix::io::Errno;

/// Turns the C library's `-1` into its error.
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    let raw = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(raw.unwrap_or(libc::EIO))
}
