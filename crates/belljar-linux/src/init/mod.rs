//! `belljar __init`: PID 1 of every sandbox, on every backend.
//!
//! Starts what the launcher requests over the channel, reaps everything, reports how it ended, and ends
//! everything when the channel closes or time is up. It decides nothing. It needs no clone3, no pidfd and no
//! openat2, so that it also works where an engine or gVisor has none.

mod attest;
mod channel;
mod command;
mod confine;
mod connections;
mod copy;
mod inside;
mod links;
mod listeners;
mod lock_down;
mod not_found;
mod pump;
mod shim;
mod terminal;
mod tree;
mod watch;

use std::ffi::OsString;

use belljar_spec::ExitStatus;
use belljar_spec::init_process::{
    ARGUMENT, BUILD_MARK, NOTHING, OVER_LINKS, OVER_STDIO, SHOW_BUILD,
};

#[cfg(test)]
pub(crate) use self::lock_down::tests::attest_as_init;

/// The channel's descriptor.
pub const CHANNEL_FD: i32 = 3;
/// Three descriptors from here on, where the launcher gave the command pipes.
pub const STDIO_FD: i32 = 4;

/// The first thing that `main` does: PID 1 parses no arguments and starts no runtime.
///
/// `Some` is the code to exit with.
pub fn run_if_asked(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    match args.next()? {
        first if first == ARGUMENT => {}
        first if first == NOTHING && args.next().is_none() => return Some(0),
        _ => return None,
    }
    let channel = match args.next() {
        None => channel::inherited,
        Some(how) if how == OVER_STDIO => channel::over_stdio,
        Some(how) if how == OVER_LINKS => channel::over_links,
        Some(how) if how == SHOW_BUILD => {
            let _ = rustix::io::write(rustix::stdio::stdout(), BUILD_MARK.as_bytes());
            return Some(0);
        }
        Some(_) => return None,
    };
    Some(match watch::run(channel) {
        Ok(()) => 0,
        Err(error) => {
            // The only place that could still be read: descriptor 2, for diagnostics.
            let _ = rustix::io::write(
                rustix::stdio::stderr(),
                belljar_spec::text::error_chain(&error).as_bytes(),
            );
            125
        }
    })
}

fn exit_status(status: rustix::process::WaitStatus) -> Option<ExitStatus> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(ExitStatus::Code(code as u8)),
        (None, Some(signal)) => Some(ExitStatus::Signal(signal as u8)),
        (None, None) => None,
    }
}
