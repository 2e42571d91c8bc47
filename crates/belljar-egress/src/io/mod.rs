//! Byte streams that several folders use: sockets, buffers, and wrappers around a connection.

pub(crate) mod buffer_pool;
pub(crate) mod delegate;
pub(crate) mod prefixed_io;
pub(crate) mod stream;
