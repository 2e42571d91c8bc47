//! A scripted command while it runs.

use std::collections::VecDeque;
use std::time::Duration;

use belljar_spec::wire::control::{Streams, TaskStreams};
use belljar_spec::wire::{Mux, Work};
use tokio::time::Instant;

use super::FakeCall;
use super::reply::{FakeReply, Takes};

/// "Never", for a timer.
pub(super) const FAR: Duration = Duration::from_secs(24 * 3600);

pub(super) struct FakeTask {
    pub(super) call: FakeCall,
    pub(super) work: Work,
    pub(super) streams: TaskStreams,
    pub(super) kind: Streams,
    pub(super) input_ended: bool,
    pub(super) stdout: VecDeque<u8>,
    pub(super) stderr: VecDeque<u8>,
    pub(super) reply: Option<FakeReply>,
    pub(super) ends: Option<Instant>,
    pub(super) deadline: Option<Instant>,
}

impl FakeTask {
    pub(super) fn new(call: FakeCall, work: Work, kind: Streams, streams: TaskStreams) -> Self {
        let deadline = call.timeout.map(|timeout| Instant::now() + timeout.min(FAR));
        Self {
            call,
            work,
            streams,
            kind,
            input_ended: false,
            stdout: VecDeque::new(),
            stderr: VecDeque::new(),
            reply: None,
            ends: None,
            deadline,
        }
    }

    pub(super) fn play(&mut self, reply: FakeReply) {
        self.stdout = reply.stdout.clone().into();
        self.stderr = reply.stderr.clone().into();
        self.ends = match reply.takes {
            Takes::Time(time) => Some(Instant::now() + time.min(FAR)),
            Takes::Forever => None,
        };
        self.reply = Some(reply);
    }

    pub(super) fn send(&mut self, mux: &mut Mux) -> u64 {
        let (to_stdout, to_stderr) = match self.kind {
            Streams::Unwatched => {
                self.stdout.clear();
                self.stderr.clear();
                return 0;
            }
            Streams::Terminal(_) => (self.streams.stdin, self.streams.stdin),
            Streams::Output | Streams::InputAndOutput => (self.streams.stdout, self.streams.stderr),
        };
        let mut total = 0;
        for (queue, stream) in [(&mut self.stdout, to_stdout), (&mut self.stderr, to_stderr)] {
            let sent = mux.send_data(stream, queue.make_contiguous());
            queue.drain(..sent);
            total += sent as u64;
        }
        total
    }

    pub(super) fn end_streams(&self, mux: &mut Mux) {
        match self.kind {
            Streams::Unwatched => {}
            Streams::Terminal(_) => mux.end(self.streams.stdin),
            Streams::Output | Streams::InputAndOutput => {
                mux.end(self.streams.stdout);
                mux.end(self.streams.stderr);
            }
        }
    }
}
