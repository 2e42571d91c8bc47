//! Creates a network namespace in which every address is local.
//!
//! Every connection ends at the servers here and is counted. Nothing leaves it: the only interface is loopback.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use belljar_linux::sys::attempt;
use belljar_linux::sys::net::loopback_up;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::WorldError;

/// Makes it, and this process is in it. As an ordinary user with a user namespace in which everybody is who
/// they were. Only for a process with one thread.
pub(super) fn make() -> Result<(), WorldError> {
    let step = |what: &'static str| move |error: Errno| WorldError::Step(what, error.into());
    if !rustix::process::geteuid().is_root() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        attempt::unshare(libc::CLONE_NEWUSER).map_err(step("make a user namespace"))?;
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{uid} {uid} 1\n")),
            ("gid_map", format!("{gid} {gid} 1\n")),
        ] {
            std::fs::write(Path::new("/proc/self").join(file), text)
                .map_err(|error| WorldError::Step("write the user namespace's maps", error))?;
        }
    }
    attempt::unshare(libc::CLONE_NEWNET).map_err(step("make a network"))?;
    loopback_up().map_err(step("bring loopback up"))?;
    own_every_address(AddressFamily::INET).map_err(step("own every IPv4 address"))?;
    // A host without IPv6 has nothing to own.
    let _ = own_every_address(AddressFamily::INET6);
    Ok(())
}

/// `ip route add local default dev lo`.
fn own_every_address(family: AddressFamily) -> Result<(), Errno> {
    const RTM_NEWROUTE: u16 = 24;
    const REQUEST_ACK_CREATE: u16 = 0x1 | 0x4 | 0x400;
    const LOCAL_TABLE: u8 = 255;
    const STATIC: u8 = 4;
    const SCOPE_HOST: u8 = 254;
    const TYPE_LOCAL: u8 = 2;
    const OUT_INTERFACE: u16 = 4;
    const LOOPBACK: u32 = 1; // the first interface of every network namespace
    let mut message = Vec::new();
    message.extend(36_u32.to_ne_bytes());
    message.extend(RTM_NEWROUTE.to_ne_bytes());
    message.extend(REQUEST_ACK_CREATE.to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    let family = family.as_raw() as u8;
    message.extend([family, 0, 0, 0, LOCAL_TABLE, STATIC, SCOPE_HOST, TYPE_LOCAL]);
    message.extend([0; 4]); // flags
    message.extend(8_u16.to_ne_bytes());
    message.extend(OUT_INTERFACE.to_ne_bytes());
    message.extend(LOOPBACK.to_ne_bytes());
    let routes = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    sendto(&routes, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0_u8; 512];
    let (length, _) = recv(&routes, &mut answer, RecvFlags::empty())?;
    // A header, then the error as a negative number.
    let code = answer[..length].get(16..20).and_then(|bytes| bytes.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(-code)),
        None => Err(Errno::IO),
    }
}

/// Into the network that another process made. Only for a process with one thread.
pub(super) fn enter(pid: u32) -> Result<(), WorldError> {
    let place = Path::new("/proc").join(pid.to_string()).join("ns");
    let step = |what: &'static str| move |error: io::Error| WorldError::Step(what, error);
    if !rustix::process::geteuid().is_root() {
        let user = File::open(place.join("user")).map_err(step("find the world"))?;
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(|error| WorldError::Step("enter the world's user namespace", error.into()))?;
    }
    let network = File::open(place.join("net")).map_err(step("find the world"))?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| WorldError::Step("enter the world's network", error.into()))
}
