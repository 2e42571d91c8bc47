//! Opens a pseudo terminal of the sandbox's devpts.

use std::os::fd::OwnedFd;

use belljar_spec::User;
use rustix::io::Errno;
use rustix::process::{parent_process_death_signal, set_parent_process_death_signal};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{Uid, set_thread_res_uid};

pub(super) struct Terminal {
    pub(super) ours: OwnedFd,
    pub(super) theirs: OwnedFd,
}

impl Terminal {
    /// Both ends, by descriptor: no path inside is looked up for the second one.
    pub(super) fn open(user: User, rows: u16, columns: u16) -> Result<Self, Errno> {
        let ours = as_user(user, || {
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        })?;
        unlockpt(&ours)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        resize(&ours, rows, columns)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Self { ours, theirs })
    }
}

pub(super) fn resize(terminal: &OwnedFd, rows: u16, columns: u16) -> Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
}

/// The terminal's file belongs to the process that opens the pair: that must be the command's user.
fn as_user<T>(user: User, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let current = rustix::process::geteuid();
    let wanted = Uid::from_raw(user.uid);
    if current == wanted {
        return act();
    }
    let signal = parent_process_death_signal().ok().flatten();
    set_thread_res_uid(None, wanted, None)?;
    let done = act();
    set_thread_res_uid(None, current, None)?;
    if signal.is_some() {
        // A change of the uid clears it. A launcher that died meanwhile is noticed at the end of the channel.
        set_parent_process_death_signal(signal)?;
    }
    done
}
