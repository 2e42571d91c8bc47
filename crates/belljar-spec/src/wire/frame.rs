//! Encodes and decodes authenticated frames: length, stream, kind, sequence number, stream offset, MAC, payload.
//!
//! The MAC and the sequence number detect a frame that anyone else wrote, repeated, dropped or reordered.

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::wipe;

/// Small, so that a control message never waits long behind data.
pub const MAX_PAYLOAD: usize = 16 * 1024;
pub(super) const HEADER: usize = 44;
/// The longest frame.
pub(super) const MAX_FRAME: usize = HEADER + MAX_PAYLOAD;
/// How much is read at once while little comes, and while much does.
const READ: usize = MAX_PAYLOAD;
const MAX_READ: usize = 256 * 1024;
/// The largest buffer of a reader that is idle.
const MAX_KEPT: usize = 64 * 1024;
const KIND_AT: usize = 8;
const MAC_AT: usize = 28;
const MAC: usize = 16;

/// Which end wrote a frame. Each end has its own key, so that a frame cannot be sent back to its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The launcher towards PID 1, and the client towards a supervisor.
    Client,
    /// PID 1, and the supervisor.
    Server,
}

impl Side {
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn context(self) -> &'static str {
        match self {
            Self::Client => "belljar 2026 channel frames from the launcher",
            Self::Server => "belljar 2026 channel frames from init",
        }
    }
}

/// What the ends of a connection agreed on in their hellos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameVersion {
    /// The hellos themselves, and a peer that does not know the second version: the MAC covers the header, then the
    /// payload, and every stream has the same window.
    #[default]
    V1,
    /// The MAC covers the payload first, whose hash is several times as fast if nothing is before it. A reader may
    /// widen the window of a stream.
    V2,
}

/// Made anew for each launch; known to the launcher and to PID 1, never to the command.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct FrameKey([u8; 32]);

impl FrameKey {
    /// Under which the first frame travels: it only carries the real key, and no hostile program
    /// runs yet.
    pub const OPENING: FrameKey = FrameKey([0; 32]);

    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// As a hello carries it.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut key = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(key))
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn for_side(&self, side: Side) -> [u8; 32] {
        blake3::derive_key(side.context(), &self.0)
    }
}

impl std::fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameKey(…)")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A piece of a control message; the last piece has kind [`FrameKind::MessageEnd`].
    MessagePart,
    MessageEnd,
    Data,
    /// The writer of this stream has nothing more to send.
    End,
    /// The reader of this stream will take bytes up to `offset`.
    Window,
    /// The reader of this stream will take no more bytes at all.
    Reset,
    /// Every frame before number `offset` has arrived. Only where the link can break.
    Acknowledge,
}

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            Self::MessagePart => 0,
            Self::MessageEnd => 1,
            Self::Data => 2,
            Self::End => 3,
            Self::Window => 4,
            Self::Reset => 5,
            Self::Acknowledge => 6,
        }
    }

    fn is_message(self) -> bool {
        matches!(self, Self::MessagePart | Self::MessageEnd)
    }

    fn from_code(code: u8) -> Option<Self> {
        [
            Self::MessagePart,
            Self::MessageEnd,
            Self::Data,
            Self::End,
            Self::Window,
            Self::Reset,
            Self::Acknowledge,
        ]
        .into_iter()
        .find(|kind| kind.code() == code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub stream: u32,
    pub kind: FrameKind,
    pub offset: u64,
    pub payload: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a frame claims {0} bytes, more than {MAX_PAYLOAD}")]
    TooLong(u32),
    #[error("a frame has a wrong MAC")]
    BadMac,
    #[error("frame {found} arrived, expected {expected}")]
    OutOfOrder { expected: u64, found: u64 },
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("the reserved bytes of a frame are not zero")]
    Reserved,
    #[error("stream {stream}: bytes at offset {found}, expected {expected}")]
    WrongOffset { stream: u32, expected: u64, found: u64 },
    #[error("stream {0}: more bytes than the window allows")]
    WindowExceeded(u32),
    #[error("stream {0} is not open")]
    UnknownStream(u32),
    #[error("a control message is longer than {0} bytes")]
    MessageTooLong(usize),
    #[error("frame {found} is acknowledged; the first one that could be is {first}")]
    BadAcknowledgement { first: u64, found: u64 },
    #[error("the other end acknowledges nothing, and {0} bytes wait to be sent again")]
    NothingAcknowledged(usize),
    #[error("invalid control message: {0}")]
    BadMessage(String),
}

/// Turns frames into bytes.
#[derive(Debug)]
pub struct FrameWriter {
    key: [u8; 32],
    side: Side,
    version: FrameVersion,
    next: u64,
}

impl FrameWriter {
    pub fn new(key: &FrameKey, side: Side) -> Self {
        Self { key: key.for_side(side), side, version: FrameVersion::V1, next: 0 }
    }

    /// From here on frames are under this key; the numbering goes on.
    pub fn rekey(&mut self, key: &FrameKey) {
        self.key.zeroize();
        self.key = key.for_side(self.side);
    }

    /// Of all frames from here on.
    pub fn use_version(&mut self, version: FrameVersion) {
        self.version = version;
    }

    /// Appends one frame. The payload must fit; callers cut before they come here.
    pub fn write(
        &mut self,
        stream: u32,
        kind: FrameKind,
        offset: u64,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        debug_assert!(payload.len() <= MAX_PAYLOAD);
        let start = out.len();
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&stream.to_le_bytes());
        out.extend_from_slice(&[kind.code(), 0, 0, 0]);
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        let mac = mac_of(&self.key, self.version, &out[start..start + MAC_AT], payload);
        out.extend_from_slice(&mac);
        out.extend_from_slice(payload);
        self.next += 1;
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// Turns bytes into frames. Holds at most one frame and what was pushed after it.
#[derive(Debug)]
pub struct FrameReader {
    key: [u8; 32],
    side: Side,
    version: FrameVersion,
    next: u64,
    buffer: Vec<u8>,
    at: usize,
    /// How much the next read should take.
    read_size: usize,
}

impl FrameReader {
    /// `side` is who writes what is read here.
    pub fn new(key: &FrameKey, side: Side) -> Self {
        Self {
            key: key.for_side(side),
            side,
            version: FrameVersion::V1,
            next: 0,
            buffer: Vec::new(),
            at: 0,
            read_size: READ,
        }
    }

    /// Of all frames from here on.
    pub fn use_version(&mut self, version: FrameVersion) {
        self.version = version;
    }

    pub fn rekey(&mut self, key: &FrameKey) {
        self.key.zeroize();
        self.key = key.for_side(self.side);
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Lets `read` append to the buffer, which has room for as much as should be read at once: little, and more while
    /// much comes. Returns what `read` does.
    pub fn push_with<T, E>(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
    ) -> Result<T, E> {
        let room = self.read_size;
        self.make_room(room);
        let before = self.buffer.len();
        let result = read(&mut self.buffer);
        let count = self.buffer.len().saturating_sub(before);
        if count >= room {
            self.read_size = (2 * room).min(MAX_READ);
        } else if count <= READ / 2 {
            self.read_size = READ;
        }
        result
    }

    fn make_room(&mut self, more: usize) {
        // Frames of messages were wiped when they were read; the beginning of one must not stay where it was.
        if is_message(&self.buffer[self.at..]) {
            wipe::take_front(&mut self.buffer, self.at);
        } else {
            self.buffer.drain(..self.at);
        }
        self.at = 0;
        // What a burst needed is not kept for ever.
        if self.buffer.is_empty() && self.read_size == READ && self.buffer.capacity() > MAX_KEPT {
            self.buffer = Vec::new();
        }
        wipe::reserve(&mut self.buffer, more);
    }

    /// The number of the next frame.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Drops the beginning of a frame: over a new link it comes again, from its first byte.
    pub(super) fn drop_partial(&mut self) {
        self.buffer.zeroize();
        self.at = 0;
    }

    /// The next whole frame. An error is final: the stream after it means nothing.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        let rest = &self.buffer[self.at..];
        let Some((header, after)) = rest.split_at_checked(HEADER) else {
            return Ok(None);
        };
        let length = u32_at(header, 0);
        if length as usize > MAX_PAYLOAD {
            return Err(WireError::TooLong(length));
        }
        let Some(payload) = after.get(..length as usize) else {
            return Ok(None);
        };
        // The MAC comes before anything else is believed.
        let mac = mac_of(&self.key, self.version, &header[..MAC_AT], payload);
        if !same(&mac, &header[MAC_AT..]) {
            return Err(WireError::BadMac);
        }
        if header[9..12] != [0, 0, 0] {
            return Err(WireError::Reserved);
        }
        let kind =
            FrameKind::from_code(header[KIND_AT]).ok_or(WireError::UnknownKind(header[KIND_AT]))?;
        let seq = u64_at(header, 12);
        if seq != self.next {
            return Err(WireError::OutOfOrder { expected: self.next, found: seq });
        }
        let frame = Frame {
            stream: u32_at(header, 4),
            kind,
            offset: u64_at(header, 20),
            payload: payload.to_vec(),
        };
        self.next += 1;
        let end = self.at + HEADER + length as usize;
        if kind.is_message() {
            self.buffer[self.at..end].zeroize();
        }
        self.at = end;
        Ok(Some(frame))
    }
}

impl Drop for FrameReader {
    fn drop(&mut self) {
        self.key.zeroize();
        self.buffer.zeroize();
    }
}

/// Whether these bytes are the beginning of a message's frame.
fn is_message(bytes: &[u8]) -> bool {
    let kind = bytes.get(KIND_AT).and_then(|code| FrameKind::from_code(*code));
    kind.is_some_and(FrameKind::is_message)
}

/// In both orders the header, whose length is fixed, says how long the payload is.
fn mac_of(key: &[u8; 32], version: FrameVersion, header: &[u8], payload: &[u8]) -> [u8; MAC] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    let (first, second) = match version {
        FrameVersion::V1 => (header, payload),
        FrameVersion::V2 => (payload, header),
    };
    hasher.update(first);
    hasher.update(second);
    let mut mac = [0; MAC];
    mac.copy_from_slice(&hasher.finalize().as_bytes()[..MAC]);
    mac
}

/// The length of the frame that begins here, as its header states it.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    (bytes.len() >= HEADER).then(|| HEADER + u32_at(bytes, 0) as usize)
}

/// Takes the same time wherever the first difference is.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}
