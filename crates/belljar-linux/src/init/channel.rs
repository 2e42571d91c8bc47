//! PID 1's end of the channel: one socket in the jail, its standard streams where an engine started it, one link
//! after another where the link to the launcher can break.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec, ioctl_fionbio};

use belljar_spec::init_process::{ARGUMENT, OVER_STDIO};

use super::CHANNEL_FD;
use super::links::Links;
use crate::sys::process::{adopt_descriptor, exec_path};

const FIRST_LEASE: Duration = Duration::from_secs(120);
/// Above everything that a command is given.
const FIRST_FREE: i32 = 10;

pub(super) struct Channel {
    input: OwnedFd,
    /// `None`: the same as the input.
    output: Option<OwnedFd>,
    /// Only where the link can break.
    links: Option<Links>,
}

impl Channel {
    pub(super) fn links(&mut self) -> Option<&mut Links> {
        self.links.as_mut()
    }

    /// What to wait for instead of the input: a new link.
    pub(super) fn broken(&self) -> Option<PollFd<'_>> {
        self.links.as_ref().and_then(Links::poll_fd)
    }

    pub(super) fn is_up(&self) -> bool {
        self.links.as_ref().is_none_or(Links::is_up)
    }

    /// The launcher is back, over another link.
    pub(super) fn replace(&mut self, link: OwnedFd) {
        self.input = link;
    }

    pub(super) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_ref().unwrap_or(&self.input).as_fd()
    }

    /// Until the launcher names another one: an engine can hold the input open after both have died.
    pub(super) fn first_lease(&self) -> Option<Duration> {
        (!self.is_one() || self.links.is_some()).then_some(FIRST_LEASE)
    }

    pub(super) fn is_one(&self) -> bool {
        self.output.is_none()
    }
}

/// The socket that the launcher left open.
pub(super) fn inherited() -> Result<Channel, Errno> {
    let input = adopt_descriptor(CHANNEL_FD)?;
    ioctl_fionbio(&input, true)?;
    Ok(Channel { input, output: None, links: None })
}

/// The descriptor is a source of links, of which the first is waited for here.
pub(super) fn over_links() -> Result<Channel, Errno> {
    let (links, input) = Links::begin(adopt_descriptor(CHANNEL_FD)?)?;
    ioctl_fionbio(&input, true)?;
    Ok(Channel { input, output: None, links: Some(links) })
}

/// An engine sets variables, and so does the image. Where other processes can read them, as in
/// gVisor, there must be nothing to read: this process re-executes itself without any.
fn without_environment() -> Result<(), Errno> {
    if std::env::vars_os().next().is_none() {
        return Ok(());
    }
    let argv = ["belljar", ARGUMENT, OVER_STDIO];
    let argv: Result<Vec<CString>, _> = argv.into_iter().map(CString::new).collect();
    Err(exec_path(c"/proc/self/exe", &argv.map_err(|_| Errno::INVAL)?, &[]))
}

/// Moves the standard streams to other descriptors, so that no child of this process inherits them.
pub(super) fn over_stdio() -> Result<Channel, Errno> {
    without_environment()?;
    let input = fcntl_dupfd_cloexec(rustix::stdio::stdin(), FIRST_FREE)?;
    let output = fcntl_dupfd_cloexec(rustix::stdio::stdout(), FIRST_FREE)?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    for end in [&input, &output] {
        ioctl_fionbio(end, true)?;
    }
    Ok(Channel { input, output: Some(output), links: None })
}
