//! A command on the host itself: no PID 1, no channel, no attestation. The streams and the clock are
//! kept the same way.

use std::time::Instant;

use belljar_backend::Started;
use belljar_spec::Plan;
use rustix::event::{PollFd, PollFlags};

use super::outside::Signals;
use super::sinks::Sinks;
use super::state::{Due, Reaction, State};
use super::{SuperviseError, Supervised, libc_signal, wait_until};
use crate::run::Streams;

pub(super) fn supervise(
    started: &mut Started,
    plan: &Plan,
    streams: Streams,
    let_go: impl FnOnce(),
) -> Result<Supervised, SuperviseError> {
    let signals = Signals::with_children()
        .map_err(|error| SuperviseError::Step("watch for signals", error))?;
    let mut supervised = Supervised::default();
    let begun = Instant::now();
    if let Some(failure) = started.host_child().and_then(|child| child.exec_failure().cloned()) {
        supervised.failure = Some(failure);
        return Ok(supervised);
    }
    let_go();
    let mut state = State::new(plan, begun);
    let mut sinks = Sinks::new(started, streams, plan.limits.output);
    while !(state.is_over() && sinks.are_empty()) {
        wait(&signals, &sinks, &state)?;
        for signal in signals.take() {
            if signal == libc_signal::CHLD {
                continue;
            }
            match state.asked_to_stop(signal, Instant::now()) {
                Reaction::Forward | Reaction::ForwardToAll => {
                    if let Some(child) = started.host_child() {
                        child.signal(signal);
                    }
                }
                Reaction::Kill => started.kill(),
            }
        }
        if sinks.move_bytes(None) {
            state.something_happened(Instant::now());
        }
        match state.due(Instant::now()) {
            Due::Nothing => {}
            Due::AskToStop => {
                if let Some(child) = started.host_child() {
                    child.signal(libc_signal::TERM);
                }
            }
            Due::Kill => started.kill(),
        }
        if let Some(status) = started.host_child().and_then(|child| child.try_wait()) {
            supervised.status = Some(status);
            supervised.stopping = state.stopping();
            started.kill(); // what it left in its group
            state.end();
            sinks.close_input();
        }
        if state.is_over() {
            sinks.stop_reading();
        }
    }
    (supervised.stdout, supervised.stderr) = sinks.captured();
    supervised.usage.wall_ms = begun.elapsed().as_millis() as u64;
    Ok(supervised)
}

fn wait(signals: &Signals, sinks: &Sinks, state: &State) -> Result<(), SuperviseError> {
    let mut fds = vec![PollFd::new(&signals.fd, PollFlags::IN)];
    sinks.watch(None, &mut fds);
    wait_until(&mut fds, state.next_moment())
}
