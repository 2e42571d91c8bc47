//! Bounds that several doors share.
//!
//! What a run can make the proxy hold, at worst, with the usual 512 connections from inside and 512 requests under
//! way. A connection of HTTP/1.1 costs one unfinished head, [`LONGEST_HEAD`], in a buffer that may have grown to twice
//! that, and no second copy: 32 MiB in all. One of HTTP/2 costs a head and a window of [`CONNECTION_WINDOW`] that is
//! not read (144 MiB), and the connection to its host [`HOST_WINDOW`] (512 MiB). Each request under way costs its head and a
//! [`SEND_BUFFER`] (48 MiB). Together that is less than 750 MiB, if every connection is of the costliest kind and
//! every peer stands still.

use std::time::Duration;

/// Of a head, and of the trailers behind a body.
pub(crate) const MAX_HEAD_BYTES: usize = 32 * 1024;
pub(crate) const MAX_HEADERS: usize = 100;
/// For a handshake, on either side.
pub(crate) const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Of HTTP/2, towards the inside, which is near.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 256 * 1024;
/// Of HTTP/2, towards a host. It may be far away, and a window is all that comes in one round trip.
pub(crate) const HOST_WINDOW: u32 = 1024 * 1024;
/// Of one stream of HTTP/2.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
