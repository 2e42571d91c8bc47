//! A backend for tests that shares nothing with the launcher, neither descriptors nor paths: an agent in another mount
//! namespace starts the jail, and everything crosses a TCP connection.
//!
//! It shows what a backend on another machine needs, and that the rest of Belljar works with it unchanged. The agent
//! relays the channel and is not trusted with it: PID 1 and the launcher prove themselves to each other on each
//! link. TCP without encryption is for tests only: the first frame carries the key.

mod agent;
mod backend;
mod protocol;
mod session;
#[cfg(feature = "launcher")]
mod take_place;

pub use agent::{AGENT, run_if_asked};
pub use backend::Remote;
pub use protocol::{Purpose, RemoteError, ask_agent};
#[cfg(feature = "launcher")]
pub use take_place::take_the_jails_place;
