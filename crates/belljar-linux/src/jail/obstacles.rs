//! Tries the first steps of a jail, to find out which of them this process is refused.

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::root::{new_proc, new_tmpfs};
use crate::sys::process::{CloneFlags, Forked, clone, exit_now, new_session_keyring};

/// A step that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    UserNamespace,
    Mount,
    /// A new `/proc`: the kernel allows none where the present one is covered in part.
    Proc,
    Keyring,
    HostName,
}

/// In the order of the bits of the child's exit code.
const IN_NAMESPACE: [Obstacle; 4] =
    [Obstacle::Mount, Obstacle::Proc, Obstacle::Keyring, Obstacle::HostName];

/// Makes a user namespace in a child process and tries in it what a jail begins with. Nothing is left of it. Empty where
/// nothing is refused, and where it cannot be tried because this process has threads.
pub fn obstacles() -> Vec<Obstacle> {
    let namespaces =
        CloneFlags::NEW_USER | CloneFlags::NEW_MOUNT | CloneFlags::NEW_PID | CloneFlags::NEW_UTS;
    let child = match clone(namespaces) {
        Ok(Forked::Child) => exit_now(try_all()),
        Ok(Forked::Parent(child)) => child,
        Err(Errno::BUSY) => return Vec::new(),
        Err(_) => return vec![Obstacle::UserNamespace],
    };
    let status = loop {
        match waitid(WaitId::Pid(child.pid), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            status => break status.ok().flatten().and_then(|status| status.exit_status()),
        }
    };
    // One that was killed tried something that its filter answers so.
    let Some(refused) = status else { return vec![Obstacle::Mount] };
    let is_refused = |(bit, _): &(usize, Obstacle)| refused & (1 << bit) != 0;
    IN_NAMESPACE.into_iter().enumerate().filter(is_refused).map(|(_, obstacle)| obstacle).collect()
}

fn try_all() -> i32 {
    let keyring = match new_session_keyring() {
        Err(Errno::NOSYS) => Ok(()), // the jail does without, too
        tried => tried,
    };
    let host_name = rustix::system::sethostname(b"belljar");
    let tried = [new_tmpfs(&[]).map(drop), new_proc().map(drop), keyring, host_name];
    let refused = tried.iter().enumerate().filter(|(_, tried)| tried.is_err());
    refused.map(|(bit, _)| 1 << bit).sum()
}
