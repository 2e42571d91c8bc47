//! Brings loopback up in a new network namespace.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

/// Touches no errno: a process that shares its launcher's memory calls it.
pub fn loopback_up() -> Result<(), Errno> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: all-zero is a valid `ifreq`: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    const SET_FLAGS: rustix::ioctl::Opcode = libc::SIOCSIFFLAGS as rustix::ioctl::Opcode;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq`.
    unsafe {
        rustix::ioctl::ioctl(&socket, rustix::ioctl::Setter::<SET_FLAGS, libc::ifreq>::new(request))
    }
}
