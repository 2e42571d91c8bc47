//! Turns the C library's results into errors.

use rustix::io::Errno;

/// Turns the C library's `-1` into its error.
pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

pub(crate) fn last_error() -> Errno {
    let raw = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(raw.unwrap_or(libc::EIO))
}
