//! Defines the size and time limits that several modules share.
//!
//! The worst-case memory of a run, with the default 512 connections and 512 pending requests: An HTTP/1.1 connection
//! costs one unfinished head, [`MAX_HEAD_BYTES`], in a buffer that may have grown to twice that: 32 MiB in all. An
//! HTTP/2 connection costs a head and an unread window of [`CONNECTION_WINDOW`] (144 MiB), and its upstream
//! connection [`HOST_WINDOW`] (512 MiB). Each pending request costs its head and a [`SEND_BUFFER`] (48 MiB). Together
//! that is less than 750 MiB, if every connection is of the costliest kind and every peer stalls.

use std::time::Duration;

/// Of a head, and of the trailers after a body.
pub(crate) const MAX_HEAD_BYTES: usize = 32 * 1024;
pub(crate) const MAX_HEADERS: usize = 100;
/// For a TLS handshake, on either side.
pub(crate) const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Without a byte in either direction. A model may think for a long time, and an event stream may be silent for as
/// long.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// HTTP/2 windows towards the sandbox, where the round trip is short.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 256 * 1024;
/// HTTP/2 window towards a host, where one window is all that arrives per round trip.
pub(crate) const HOST_WINDOW: u32 = 1024 * 1024;
/// Per HTTP/2 stream.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
