//! Sets the extended attributes that an entry may have.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{XattrFlags, fsetxattr};
use rustix::io::Errno;

use super::budget::Budget;
use super::error::UnpackProblem;
use super::options::{PrivilegedBits, UnpackReport};

const CAPABILITY: &[u8] = b"security.capability";
const USER: &[u8] = b"user.";
/// What overlays read as their own marks, whoever wrote them.
const OVERLAY_MARKS: [&[u8]; 3] = [b"user.overlay.", b"user.fuseoverlayfs.", b"user.containers."];
/// The kernel's limit for a name.
const MAX_NAME: usize = 255;

enum Decision {
    Set,
    Drop,
}

/// What cannot or must not be set is dropped and counted.
pub(super) fn set_all(
    target: BorrowedFd<'_>,
    xattrs: &[(Vec<u8>, Vec<u8>)],
    privileged: PrivilegedBits,
    budget: &mut Budget<'_>,
    report: &mut UnpackReport,
) -> Result<(), UnpackProblem> {
    let mut of_entry = 0_u64;
    for (name, value) in xattrs {
        let bytes = (name.len() + value.len()) as u64;
        of_entry = of_entry.saturating_add(bytes);
        let set = match decide(name, value, privileged) {
            Decision::Set if budget.xattr(bytes, of_entry) => {
                fsetxattr(target, OsStr::from_bytes(name), value, XattrFlags::empty())
            }
            _ => Err(Errno::PERM),
        };
        match set {
            Ok(()) => {}
            // The policy, a file system without them, one that has room for less, or a user who may not.
            Err(
                Errno::PERM
                | Errno::NOTSUP
                | Errno::NOSPC
                | Errno::TOOBIG
                | Errno::INVAL
                | Errno::RANGE,
            ) => {
                report.dropped_xattrs += 1;
            }
            Err(error) => return Err(UnpackProblem::system("set an extended attribute")(error)),
        }
    }
    Ok(())
}

fn decide(name: &[u8], value: &[u8], privileged: PrivilegedBits) -> Decision {
    if name.contains(&0) || name.len() > MAX_NAME {
        return Decision::Drop;
    }
    let is_mark = OVERLAY_MARKS.iter().any(|prefix| name.starts_with(prefix));
    match privileged {
        PrivilegedBits::Keep if name == CAPABILITY && is_capability(value) => Decision::Set,
        _ if name.starts_with(USER) && name.len() > USER.len() && !is_mark => Decision::Set,
        _ => Decision::Drop,
    }
}

/// Version 2, which counts in whatever user namespace the file is seen in. Version 3 names a user of the
/// machine that made the image, and means nothing here.
fn is_capability(value: &[u8]) -> bool {
    value.len() == 20 && value[..4] == [0, 0, 0, 2]
        || value.len() == 20 && value[..4] == [1, 0, 0, 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set(name: &[u8], value: &[u8], privileged: PrivilegedBits) -> bool {
        matches!(decide(name, value, privileged), Decision::Set)
    }

    #[test]
    fn only_users_attributes_and_capabilities_are_set() {
        let mut capability = [0; 20];
        capability[..4].copy_from_slice(&[1, 0, 0, 2]);
        assert!(is_set(b"user.a", b"", PrivilegedBits::Strip));
        assert!(is_set(b"security.capability", &capability, PrivilegedBits::Keep));
        assert!(!is_set(b"security.capability", &capability, PrivilegedBits::Strip));
        assert!(!is_set(b"security.capability", &capability[..8], PrivilegedBits::Keep));
        for name in [
            &b"trusted.overlay.opaque"[..],
            b"trusted.x",
            b"user.overlay.opaque",
            b"user.overlay.whiteout",
            b"user.fuseoverlayfs.opaque",
            b"security.selinux",
            b"system.posix_acl_access",
            b"user.",
            b"user.a\0b",
            b"",
            b"x",
        ] {
            assert!(!is_set(name, b"y", PrivilegedBits::Keep), "{:?}", OsStr::from_bytes(name));
        }
    }
}
