//! Moves bytes: between commands and their followers, and between connections and the channel.

use std::time::Duration;

use belljar_record::RecordError;

use super::super::channel::{Channel, MAIN_EXEC};
use super::super::inlet::Inlet;
use super::super::loop_throttle::LoopThrottle;
use super::super::outlet;
use super::super::task::Task;
use super::{SandboxParts, SandboxState};

/// Reads the pipes of a sandbox's commands.
#[derive(Debug, Default)]
pub(super) struct OutputPump {
    buffer: Box<[u8]>,
    throttle: LoopThrottle,
    pause: Option<Duration>,
}

impl OutputPump {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; outlet::CHUNK].into_boxed_slice(), ..Self::default() }
    }

    pub(super) fn pause(&self) -> Option<Duration> {
        self.pause
    }
}

impl SandboxState {
    /// How many bytes its commands wrote to their pipes.
    pub(super) fn move_streams(
        &mut self,
        parts: &mut SandboxParts<'_>,
    ) -> Result<usize, RecordError> {
        let mut moved = 0;
        // Asked before the last read: what was written before the end is then found.
        let is_empty = self.is_over() && self.is_empty();
        let main_just_ended = std::mem::take(&mut self.main_just_ended);
        let OutputPump { buffer, throttle, pause } = &mut self.output;
        for task in self.tasks.values_mut() {
            let is_last = is_empty || (main_just_ended && task.exec == MAIN_EXEC);
            if is_last {
                task.read_the_rest();
            }
            let channel = self.link.channel();
            moved += task.move_bytes(buffer, channel, parts.clients, parts.recorder)?;
            if is_last {
                task.give_up();
            }
        }
        *pause = throttle.next(moved);
        Ok(moved)
    }

    pub(super) fn move_connections(
        &mut self,
        parts: &mut SandboxParts<'_>,
    ) -> Result<(), RecordError> {
        if self.is_over() {
            return Ok(());
        }
        let own = parts.ready.iter().filter(|ready| ready.sandbox == self.id);
        let ready: Vec<u32> = own.map(|ready| ready.stream).collect();
        let mux = self.link.channel().map(Channel::mux_mut);
        self.network.turn(&ready, mux, parts.recorder)
    }

    pub(super) fn inputs(&mut self) -> impl Iterator<Item = &mut Inlet> {
        self.tasks.values_mut().filter_map(|task| task.input.as_mut())
    }

    pub(super) fn give_up_output(&mut self) {
        self.tasks.values_mut().for_each(Task::give_up);
    }
}
