//! Connects to hosts: name resolution, address checks, dialling, TLS, connection reuse, and the tickets that allow it.

pub(crate) mod address;
pub(crate) mod dial;
pub(crate) mod permit;
pub(crate) mod pool;
pub(crate) mod resolve;
pub(crate) mod roots;
pub(crate) mod send;
pub(crate) mod socket;
pub(crate) mod ticket;
pub(crate) mod tls;
