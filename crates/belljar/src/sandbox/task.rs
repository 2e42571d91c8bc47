//! The client's state of one command.

use std::collections::VecDeque;
use std::task::Waker;

use belljar_spec::wire::Flow;
use belljar_spec::wire::control::{ControlError, Streams, TaskStreams};
use belljar_spec::{ExecFailure, Exit};

/// The stream of a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Stdout,
    Stderr,
    /// The terminal: both streams, with control sequences.
    Terminal,
}

/// A piece of output, in the order in which it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub source: Source,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Asked,
    Running,
    Exited(Exit),
    Failed(ExecFailure),
    Refused(ControlError),
}

/// What happens to output that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    ToReader,
    /// There is no reader: the bytes are dropped, so that the command is not blocked.
    Discarded,
}

/// Unread output, at most a stream's window: what is not read is not acknowledged.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) stream: u32,
    pub(super) source: Source,
    pub(super) chunks: VecDeque<(u64, Vec<u8>)>,
    pub(super) ended: bool,
    pub(super) taken: Delivery,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) streams: TaskStreams,
    pub(super) kind: Streams,
    pub(super) inboxes: Vec<Inbox>,
    pub(super) phase: Phase,
    /// The number under which the record has it, once it has started.
    pub(super) exec: Option<u32>,
    /// Input that was given as a whole and waits for a free window.
    pub(super) feed: VecDeque<u8>,
    pub(super) feeding: bool,
    pub(super) input_refused: bool,
    /// The handle was dropped; the entry stays until the command ends.
    pub(super) abandoned: bool,
    pub(super) wakers: Vec<Waker>,
    arrivals: u64,
}

impl Task {
    pub(super) fn new(streams: TaskStreams, kind: Streams) -> Self {
        let inbox = |stream, source| Inbox {
            stream,
            source,
            chunks: VecDeque::new(),
            ended: false,
            taken: Delivery::ToReader,
        };
        let inboxes = match kind {
            Streams::Unwatched => Vec::new(),
            Streams::Output | Streams::InputAndOutput => {
                vec![inbox(streams.stdout, Source::Stdout), inbox(streams.stderr, Source::Stderr)]
            }
            Streams::Terminal(_) => vec![inbox(streams.stdin, Source::Terminal)],
        };
        Self {
            streams,
            kind,
            inboxes,
            phase: Phase::Asked,
            exec: None,
            feed: VecDeque::new(),
            feeding: false,
            input_refused: false,
            abandoned: false,
            wakers: Vec::new(),
            arrivals: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        !matches!(self.phase, Phase::Asked | Phase::Running)
    }

    pub(super) fn takes_input(&self) -> bool {
        matches!(self.kind, Streams::InputAndOutput | Streams::Terminal(_))
    }

    pub(super) fn inbox(&mut self, stream: u32) -> Option<&mut Inbox> {
        self.inboxes.iter_mut().find(|inbox| inbox.stream == stream)
    }

    pub(super) fn arrived(&mut self, stream: u32, bytes: Vec<u8>) -> Delivery {
        self.arrivals += 1;
        let number = self.arrivals;
        let Some(inbox) = self.inbox(stream) else { return Delivery::Discarded };
        if inbox.taken == Delivery::ToReader && !bytes.is_empty() {
            inbox.chunks.push_back((number, bytes));
        }
        inbox.taken
    }

    /// The oldest piece of all streams except those with a separate reader.
    pub(super) fn pop_oldest(&mut self, but: &[Source]) -> Option<(u32, Chunk)> {
        let inboxes = self.inboxes.iter_mut().filter(|inbox| !but.contains(&inbox.source));
        let oldest = inboxes
            .filter(|inbox| !inbox.chunks.is_empty())
            .min_by_key(|inbox| inbox.chunks.front().map(|(number, _)| *number))?;
        let (_, bytes) = oldest.chunks.pop_front()?;
        Some((oldest.stream, Chunk { source: oldest.source, bytes }))
    }

    pub(super) fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// The streams of a task, seen from the client.
pub(super) fn flows(streams: TaskStreams, kind: Streams) -> Vec<(u32, Flow)> {
    let output = [(streams.stdout, Flow::Incoming), (streams.stderr, Flow::Incoming)];
    match kind {
        Streams::Unwatched => Vec::new(),
        Streams::Output => output.to_vec(),
        Streams::InputAndOutput => [&[(streams.stdin, Flow::Outgoing)][..], &output].concat(),
        Streams::Terminal(_) => vec![(streams.stdin, Flow::Bidirectional)],
    }
}
