//! Tests of whole exchanges: a client, the proxy, and a server on loopback.

mod disclosure;
mod intercept;
mod raw;
mod route;
mod secret;
mod stream;
