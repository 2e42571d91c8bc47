//! Taking more than one's share. Each probe has a bound of its own, for the arm without limits.

use std::time::Duration;

use belljar_linux::sys::process::{exit_now, fork};
use rustix::fs::inotify;
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use super::{Arguments, ProbeError, Probed};
use crate::answer::Told;

/// Forks until that fails, or until there are enough; then takes them back.
pub(super) fn forks(args: &Arguments<'_>) -> Probed {
    let most = args.number(0, "how many")?.min(4096);
    let mut told = Told::default();
    let mut children = Vec::new();
    let mut result = Ok(());
    for _ in 0..most {
        match fork() {
            Ok(None) => {
                std::thread::sleep(Duration::from_secs(20));
                exit_now(0);
            }
            Ok(Some(child)) => children.push(child),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    told.tried("fork", result);
    told.fact("children", children.len());
    for child in children {
        let _ = kill_process(child, Signal::KILL); // ended by itself is as good
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    Ok(told)
}

/// Fills memory, a mebibyte at a time.
pub(super) fn fill_memory(args: &Arguments<'_>) -> Probed {
    const MEBIBYTE: usize = 1 << 20;
    let most = args.number(0, "how many MiB")?.min(1024);
    let mut held: Vec<Vec<u8>> = Vec::new();
    for count in 0..most {
        // Not zero, or the kernel would not have to find memory for it.
        held.push(vec![(count % 255) as u8 + 1; MEBIBYTE]);
    }
    let mut told = Told::default();
    told.fact("mebibytes", held.len());
    told.fact("last", held.last().map_or(0, |block| block[block.len() - 1]));
    Ok(told)
}

/// `COUNT HOLD-MS [LIMIT]`: takes inotify instances until that fails and keeps them; with a limit it is
/// set first, which only works in a user namespace of our own. Then says whether another process gets
/// one.
pub(super) fn inotify(args: &Arguments<'_>) -> Probed {
    let most = args.number(0, "how many")?.min(4096);
    if let Ok(limit) = args.text(2, "a limit") {
        let knob = "/proc/sys/user/max_inotify_instances";
        std::fs::write(knob, limit)
            .map_err(|error| ProbeError::Step(format!("write {knob}"), error))?;
    }
    let mut told = Told::default();
    let mut held = Vec::new();
    let mut result = Ok(());
    for _ in 0..most {
        match inotify::init(inotify::CreateFlags::CLOEXEC) {
            Ok(instance) => held.push(instance),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    told.tried("inotify_init", result);
    told.fact("instances", held.len());
    told.answered(
        "another process",
        super::in_child(|| inotify::init(inotify::CreateFlags::CLOEXEC).map(drop)),
    );
    super::say_and_stay(&told, args.number(1, "milliseconds")?);
    Ok(told)
}
