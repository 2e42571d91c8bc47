//! The protocol between the launcher and `belljar __init`, on every backend.
//!
//! Three layers, none of which does I/O: [`frame`] cuts a byte stream into authenticated frames,
//! [`mux`] carries control messages and flow-controlled streams in them, [`message`] defines the
//! control messages. Both ends use the same code; each treats the other's bytes as hostile.
//!
//! Where the link under a channel can break, [`resume`] takes it up again over another one.
//!
//! The supervisor's control socket uses the same frames; [`control`] defines its messages.

pub mod archive;
pub mod control;
pub mod frame;
pub mod message;
pub mod mux;
mod queue;
pub mod resume;
mod unacknowledged;
mod wipe;

pub use frame::{
    Frame, FrameKey, FrameKind, FrameReader, FrameVersion, FrameWriter, MAX_PAYLOAD, Side,
    WireError,
};
pub use message::{
    AttestationKind, Descendants, ENTER_WORKDIR, ExecRequest, FIRST_ACCEPT_STREAM,
    FIRST_CONNECT_STREAM, FromInit, InitHello, InitSetup, LauncherHello, MAX_CONNECTIONS,
    MAX_CONNECTS, PROTOCOL_MAX, PROTOCOL_MIN, ReadOnlyFiles, Stdio, ToInit, UnpackModes, Work,
};
pub use mux::{Arrival, Flow, Mux};
pub use queue::ByteQueue;
pub use resume::{Nonce, ResumeClient, ResumeError, ResumeKey, ResumeServer, Resumed};
