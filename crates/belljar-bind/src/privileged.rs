//! Covers files in a writable tree that are already setuid, setgid or have capabilities.
//!
//! The kernel clears those bits when such a file is written to, but not when it is changed through
//! a shared mapping, and no filter can see that. So they are covered read-only.

use std::path::Path;

pub(super) fn is_privileged(path: &Path, mode: u32) -> bool {
    const SETUID_OR_SETGID: u32 = 0o6000;
    const EXECUTABLE: u32 = 0o111;
    let has_capability = || {
        let mut nothing: [u8; 0] = [];
        // With no room for the value, the answer is its length.
        rustix::fs::lgetxattr(path, "security.capability", &mut nothing)
            .is_ok_and(|length| length > 0)
    };
    mode & SETUID_OR_SETGID != 0 || (mode & EXECUTABLE != 0 && has_capability())
}
