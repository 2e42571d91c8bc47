//! Multiplexes control messages and flow-controlled streams over frames.
//!
//! Sans-I/O: bytes in, arrivals out; what is to be sent waits in `outgoing`. The budget is fixed:
//! 64 KiB a stream, [`MAX_STREAMS`] of them, and [`WIDE_BUDGET`] for those that were widened. Data is only taken while
//! little else waits, so that a control message never queues behind more than [`DATA_AHEAD`] bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize, Zeroizing};

use super::frame::{
    Frame, FrameKey, FrameKind, FrameReader, FrameVersion, FrameWriter, HEADER, MAX_FRAME,
    MAX_PAYLOAD, Side, WireError,
};
use super::message::{MAX_CONNECTIONS, MAX_CONNECTS};
use super::unacknowledged::{ACKNOWLEDGE_EVERY, DATA_UNDER_WAY, MAX_UNDER_WAY, Unacknowledged};
use super::wipe::{self, Length};

/// Bytes of one stream that may be in flight.
pub const WINDOW: u64 = 64 * 1024;
/// The same of a stream that was widened: one that carries files.
pub const WIDE_WINDOW: u64 = 512 * 1024;
/// What all widened streams of one end may have in flight together. A further one keeps its window.
pub const WIDE_BUDGET: u64 = 4 * 1024 * 1024;
/// Streams open at once: three for each of 64 commands, and one for each connection. The end that makes connections
/// counts them, so that no command is left without a stream.
pub const MAX_STREAMS: usize = 3 * 64 + MAX_CONNECTIONS + MAX_CONNECTS;
/// The longest control message: arguments and environment of a command, as much as a kernel takes.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// Data waiting to be sent, maximum.
pub const DATA_AHEAD: usize = 64 * 1024;
/// Closed streams for which late frames are still recognised.
const MAX_FORGOTTEN: usize = 1024;
const CONTROL: u32 = 0;

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Wiped when it is dropped, as everything was that it came through.
    Message(Zeroizing<Vec<u8>>),
    Data {
        stream: u32,
        bytes: Vec<u8>,
    },
    End {
        stream: u32,
    },
    /// The other end takes no more of this stream.
    Reset {
        stream: u32,
    },
}

/// Which end writes to a stream, seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Bidirectional,
    Outgoing,
    Incoming,
}

#[derive(Debug, Default)]
struct Stream {
    /// How much this end takes before it is consumed.
    window: u64,
    /// Bytes received, and how far the other end may go.
    received: u64,
    receive_limit: u64,
    /// Bytes consumed here since the last window frame.
    unannounced: u64,
    /// Bytes sent, and how far we may go.
    sent: u64,
    send_limit: u64,
    ended_here: bool,
    ended_there: bool,
}

/// One end of the channel.
#[derive(Debug)]
pub struct Mux {
    reader: FrameReader,
    writer: FrameWriter,
    version: FrameVersion,
    streams: BTreeMap<u32, Stream>,
    /// Streams that were given up before both ends were done with them.
    forgotten: VecDeque<u32>,
    partial: Zeroizing<Vec<u8>>,
    outgoing: Zeroizing<Vec<u8>>,
    /// Something of a message may be in what is to be sent.
    sends_message: bool,
    /// Only where the link can break.
    unacknowledged: Option<Unacknowledged>,
}

impl Mux {
    /// Both directions start under the opening key; see [`Mux::rekey`].
    pub fn new(side: Side) -> Self {
        Self {
            reader: FrameReader::new(&FrameKey::OPENING, side.other()),
            writer: FrameWriter::new(&FrameKey::OPENING, side),
            version: FrameVersion::V1,
            streams: BTreeMap::new(),
            forgotten: VecDeque::new(),
            partial: Zeroizing::default(),
            outgoing: Zeroizing::default(),
            sends_message: false,
            unacknowledged: None,
        }
    }

    /// Keeps what is sent until the other end acknowledges it, so that the channel can go on over another link. Both ends
    /// do, from their first frame on.
    pub fn keep_unacknowledged(&mut self) {
        self.unacknowledged.get_or_insert_default();
    }

    /// The number of the next frame that is expected.
    pub fn next_frame(&self) -> u64 {
        self.reader.next()
    }

    /// Goes on over a new link, on which nothing was sent yet, to an end that expects the frame `peer_next`. What that
    /// end lacks is in [`Mux::outgoing`] again.
    pub fn resume(&mut self, peer_next: u64) -> Result<(), WireError> {
        let Some(kept) = &mut self.unacknowledged else {
            return Err(WireError::BadAcknowledgement { first: 0, found: peer_next });
        };
        kept.again(peer_next, &mut self.outgoing)?;
        self.sends_message = true; // perhaps: what is sent again is wiped too
        self.reader.drop_partial();
        Ok(())
    }

    fn under_way(&self) -> usize {
        self.outgoing.len() + self.unacknowledged.as_ref().map_or(0, Unacknowledged::len)
    }

    /// Called by the launcher after its hello is queued, and by init when it has read it.
    pub fn rekey(&mut self, key: &FrameKey) {
        self.reader.rekey(key);
        self.writer.rekey(key);
    }

    /// Of all frames from here on, in both directions. Both ends change at the same frame: a launcher and PID 1 after the
    /// first hello, a client and a supervisor after the second.
    pub fn use_version(&mut self, version: FrameVersion) {
        self.version = version;
        self.reader.use_version(version);
        self.writer.use_version(version);
    }

    /// Both ends open a stream before the message that names it takes effect.
    pub fn open(&mut self, stream: u32) -> Result<(), WireError> {
        self.open_for(stream, Flow::Bidirectional)
    }

    /// A stream that only one end writes to is over, and its number free, when that end is done. What
    /// the other end sends about it meanwhile is late and is ignored. So that a late frame is never taken for
    /// another stream's, the end that chooses the numbers of one channel uses each number once.
    pub fn open_for(&mut self, stream: u32, flow: Flow) -> Result<(), WireError> {
        if stream == CONTROL
            || self.streams.len() >= MAX_STREAMS
            || self.streams.contains_key(&stream)
        {
            return Err(WireError::BadMessage(format!("stream {stream} cannot be opened")));
        }
        self.forgotten.retain(|old| *old != stream);
        let open = Stream {
            window: WINDOW,
            receive_limit: WINDOW,
            send_limit: WINDOW,
            ended_here: flow == Flow::Incoming,
            ended_there: flow == Flow::Outgoing,
            ..Stream::default()
        };
        self.streams.insert(stream, open);
        Ok(())
    }

    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), WireError> {
        let bad = |error: serde_json::Error| WireError::BadMessage(error.to_string());
        let mut length = Length::default();
        serde_json::to_writer(&mut length, message).map_err(bad)?;
        let mut text = Zeroizing::new(Vec::with_capacity(length.0));
        serde_json::to_writer(&mut *text, message).map_err(bad)?;
        self.send_text(&text)
    }

    /// Sends a message that is already serialised.
    pub fn send_text(&mut self, text: &[u8]) -> Result<(), WireError> {
        if text.len() > MAX_MESSAGE {
            return Err(WireError::MessageTooLong(MAX_MESSAGE));
        }
        if self.unacknowledged.is_some() && self.under_way() + text.len() > MAX_UNDER_WAY {
            return Err(WireError::NothingAcknowledged(self.under_way()));
        }
        self.sends_message = true;
        let mut pieces = text.chunks(MAX_PAYLOAD).peekable();
        while let Some(piece) = pieces.next() {
            let kind = if pieces.peek().is_some() {
                FrameKind::MessagePart
            } else {
                FrameKind::MessageEnd
            };
            wipe::reserve(&mut self.outgoing, MAX_FRAME);
            self.writer.write(CONTROL, kind, 0, piece, &mut self.outgoing);
        }
        Ok(())
    }

    /// How many bytes of this stream would be taken now.
    pub fn room(&self, stream: u32) -> usize {
        let Some(open) = self.streams.get(&stream) else {
            return 0;
        };
        let mut ahead = DATA_AHEAD.saturating_sub(self.outgoing.len());
        if self.unacknowledged.is_some() {
            ahead = ahead.min(DATA_UNDER_WAY.saturating_sub(self.under_way()));
        }
        if open.ended_here { 0 } else { ahead.min((open.send_limit - open.sent) as usize) }
    }

    /// Takes as much as there is room for and returns how much that was.
    pub fn send_data(&mut self, stream: u32, bytes: &[u8]) -> usize {
        let take = self.room(stream).min(bytes.len());
        let Some(open) = self.streams.get_mut(&stream) else {
            return 0;
        };
        for piece in bytes[..take].chunks(MAX_PAYLOAD) {
            wipe::reserve(&mut self.outgoing, MAX_FRAME);
            self.writer.write(stream, FrameKind::Data, open.sent, piece, &mut self.outgoing);
            open.sent += piece.len() as u64;
        }
        take
    }

    /// Nothing more will be sent on this stream.
    pub fn end(&mut self, stream: u32) {
        let Some(open) = self.streams.get_mut(&stream) else {
            return;
        };
        if !open.ended_here {
            open.ended_here = true;
            self.writer.write(stream, FrameKind::End, open.sent, &[], &mut self.outgoing);
        }
        self.forget_if_over(stream);
    }

    /// What arrived on this stream cannot be delivered any more; the other end should stop.
    pub fn reset(&mut self, stream: u32) {
        let Some(open) = self.streams.get_mut(&stream) else {
            return;
        };
        if !open.ended_there && open.receive_limit != u64::MAX {
            open.receive_limit = u64::MAX;
            self.writer.write(stream, FrameKind::Reset, open.received, &[], &mut self.outgoing);
        }
    }

    /// Takes more of this stream before it is consumed, if the other end can send more and the budget allows it.
    pub fn widen(&mut self, stream: u32) {
        let wide = self.wide_bytes();
        let Some(open) = self.streams.get_mut(&stream) else { return };
        let is_over = open.ended_there || open.receive_limit == u64::MAX;
        let is_enough = open.window == WIDE_WINDOW || wide + WIDE_WINDOW > WIDE_BUDGET;
        if self.version == FrameVersion::V1 || is_over || is_enough {
            return;
        }
        open.receive_limit += WIDE_WINDOW - open.window;
        open.window = WIDE_WINDOW;
        let limit = open.receive_limit;
        self.writer.write(stream, FrameKind::Window, limit, &[], &mut self.outgoing);
    }

    /// What all widened streams of this end may have in flight.
    pub fn wide_bytes(&self) -> u64 {
        self.streams.values().map(|open| open.window).filter(|window| *window > WINDOW).sum()
    }

    /// Bytes of this stream were delivered, so as many more may come.
    pub fn consumed(&mut self, stream: u32, count: usize) {
        let Some(open) = self.streams.get_mut(&stream) else {
            return;
        };
        if open.receive_limit == u64::MAX || open.ended_there {
            return;
        }
        open.unannounced += count as u64;
        if open.unannounced >= open.window / 2 {
            open.receive_limit += open.unannounced;
            open.unannounced = 0;
            self.writer.write(
                stream,
                FrameKind::Window,
                open.receive_limit,
                &[],
                &mut self.outgoing,
            );
        }
    }

    /// The other end opened this stream, and there is none to be had here. It learns so, and what it sent before
    /// that is dropped.
    pub fn decline(&mut self, stream: u32) {
        if stream == CONTROL || self.streams.contains_key(&stream) {
            return;
        }
        for kind in [FrameKind::Reset, FrameKind::End] {
            self.writer.write(stream, kind, 0, &[], &mut self.outgoing);
        }
        self.remember(stream);
    }

    /// How many streams with such numbers are open.
    pub fn count_open(&self, numbers: impl RangeBounds<u32>) -> usize {
        self.streams.range(numbers).count()
    }

    pub fn is_open(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Whether this end may still write to the stream.
    pub fn may_send(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|open| !open.ended_here)
    }

    /// The task that this stream belonged to is over. Frames that the other end sent before it knew are
    /// dropped.
    pub fn forget(&mut self, stream: u32) {
        if self.streams.remove(&stream).is_some() {
            self.remember(stream);
        }
    }

    fn remember(&mut self, stream: u32) {
        if self.forgotten.len() >= MAX_FORGOTTEN {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(stream);
    }

    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    pub fn sent(&mut self, count: usize) {
        if let Some(kept) = &mut self.unacknowledged {
            kept.keep(&self.outgoing[..count]);
        }
        if self.sends_message {
            wipe::take_front(&mut self.outgoing, count);
            self.sends_message = !self.outgoing.is_empty();
        } else {
            self.outgoing.drain(..count);
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.reader.push(bytes);
    }

    /// Lets `read` append what arrived to the buffer of this end; see [`FrameReader::push_with`].
    pub fn push_with<T, E>(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.reader.push_with(read)
    }

    /// How many authentic frames have arrived.
    pub fn frames_received(&self) -> u64 {
        self.reader.next()
    }

    /// The next thing that arrived. An error is final.
    pub fn next_arrival(&mut self) -> Result<Option<Arrival>, WireError> {
        // Frames that only answer others are not bounded by windows: an end that never acknowledges ends here.
        if self.unacknowledged.is_some() && self.under_way() > MAX_UNDER_WAY {
            return Err(WireError::NothingAcknowledged(self.under_way()));
        }
        while let Some(frame) = self.reader.next_frame()? {
            self.acknowledge(frame.payload.len());
            if let Some(arrival) = self.accept(frame)? {
                return Ok(Some(arrival));
            }
        }
        Ok(None)
    }

    fn acknowledge(&mut self, payload: usize) {
        let Some(kept) = &mut self.unacknowledged else { return };
        kept.arrived += HEADER + payload;
        if kept.arrived >= ACKNOWLEDGE_EVERY {
            kept.arrived = 0;
            let next = self.reader.next();
            self.writer.write(CONTROL, FrameKind::Acknowledge, next, &[], &mut self.outgoing);
        }
    }

    fn accept(&mut self, frame: Frame) -> Result<Option<Arrival>, WireError> {
        match (frame.kind, frame.stream) {
            (FrameKind::MessagePart | FrameKind::MessageEnd, CONTROL) => self.accept_message(frame),
            (FrameKind::Acknowledge, CONTROL) => match &mut self.unacknowledged {
                Some(kept) => kept.acknowledged(frame.offset).map(|()| None),
                None => Err(WireError::UnknownStream(CONTROL)),
            },
            (FrameKind::Acknowledge, other) => Err(WireError::UnknownStream(other)),
            (FrameKind::MessagePart | FrameKind::MessageEnd, other) | (_, other @ CONTROL) => {
                Err(WireError::UnknownStream(other))
            }
            (kind, stream) => self.accept_on_stream(kind, stream, frame),
        }
    }

    fn accept_message(&mut self, mut frame: Frame) -> Result<Option<Arrival>, WireError> {
        if self.partial.len() + frame.payload.len() > MAX_MESSAGE {
            return Err(WireError::MessageTooLong(MAX_MESSAGE));
        }
        wipe::reserve(&mut self.partial, frame.payload.len());
        self.partial.extend_from_slice(&frame.payload);
        frame.payload.zeroize();
        match frame.kind {
            FrameKind::MessageEnd => Ok(Some(Arrival::Message(std::mem::take(&mut self.partial)))),
            _ => Ok(None),
        }
    }

    fn accept_on_stream(
        &mut self,
        kind: FrameKind,
        stream: u32,
        frame: Frame,
    ) -> Result<Option<Arrival>, WireError> {
        let Some(open) = self.streams.get_mut(&stream) else {
            // A stream that we ended is over for us before the other end knows it.
            let late = matches!(kind, FrameKind::Window | FrameKind::Reset);
            let known = late || self.forgotten.contains(&stream);
            return if known { Ok(None) } else { Err(WireError::UnknownStream(stream)) };
        };
        match kind {
            FrameKind::Data => {
                if open.ended_there || frame.offset != open.received {
                    let expected = open.received;
                    return Err(WireError::WrongOffset { stream, expected, found: frame.offset });
                }
                open.received += frame.payload.len() as u64;
                if open.received > open.receive_limit {
                    return Err(WireError::WindowExceeded(stream));
                }
                Ok(Some(Arrival::Data { stream, bytes: frame.payload }))
            }
            FrameKind::End => {
                if open.ended_there || frame.offset != open.received {
                    let expected = open.received;
                    return Err(WireError::WrongOffset { stream, expected, found: frame.offset });
                }
                open.ended_there = true;
                self.forget_if_over(stream);
                Ok(Some(Arrival::End { stream }))
            }
            FrameKind::Window => {
                // A window only ever grows, and never past what one stream may hold.
                let most = match self.version {
                    FrameVersion::V1 => WINDOW,
                    FrameVersion::V2 => WIDE_WINDOW,
                };
                let limit = open.sent.saturating_add(most);
                if frame.offset < open.send_limit || frame.offset > limit {
                    return Err(WireError::WindowExceeded(stream));
                }
                open.send_limit = frame.offset;
                Ok(None)
            }
            FrameKind::Reset => {
                open.send_limit = open.sent;
                Ok(Some(Arrival::Reset { stream }))
            }
            FrameKind::MessagePart | FrameKind::MessageEnd | FrameKind::Acknowledge => {
                Err(WireError::UnknownStream(stream))
            }
        }
    }

    /// A stream's number is free again when both ends are done with it.
    fn forget_if_over(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|open| open.ended_here && open.ended_there) {
            self.streams.remove(&stream);
        }
    }
}

/// Reads a control message. Every byte is hostile: an error, never a panic.
pub fn parse<M: DeserializeOwned>(message: &[u8]) -> Result<M, WireError> {
    serde_json::from_slice(message).map_err(|error| WireError::BadMessage(error.to_string()))
}
