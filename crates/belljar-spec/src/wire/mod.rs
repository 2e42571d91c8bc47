//! What crosses the channel between the launcher and `belljar __init`, on every backend.
//!
//! Three layers, none of which does I/O: [`frame`] cuts a byte stream into authenticated frames,
//! [`mux`] carries control messages and flow-controlled streams in them, [`message`] is what the
//! control messages say. Both ends use the same code; each treats the other's bytes as hostile.

pub mod frame;
pub mod message;
pub mod mux;

pub use frame::{
    Frame, FrameKey, FrameKind, FrameReader, FrameWriter, MAX_PAYLOAD, Side, WireError,
};
pub use message::{
    ExecRequest, FromInit, InitHello, InitSetup, LauncherHello, PROTOCOL_MAX, PROTOCOL_MIN, Stdio,
    ToInit,
};
pub use mux::{Arrival, Mux};
