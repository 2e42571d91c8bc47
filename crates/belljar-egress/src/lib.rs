//! The one way out of a sandbox: a proxy in a process of its own, which alone decides what is reached, and
//! puts the values of secrets into what goes out. (The supervisor knows them too, to cover them in the record.)
//!
//! It takes connections that come from inside, whose every byte is hostile, and makes connections outside. It
//! knows no backend, no record and no run directory: what it decides it tells the supervisor, over one socket.
//! When it dies, everything it carried is closed, and nothing is opened.

mod address;
mod answer;
mod body;
mod budget;
mod buffers;
mod connect;
pub mod control;
mod dial;
mod door;
mod forward;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod headers;
mod intercept;
mod jks;
mod limits;
mod mask;
mod merge;
mod overrides;
mod patient;
mod plain;
mod policy;
mod proxy;
mod quota;
mod relay;
mod repeats;
mod report;
mod resolve;
mod rewound;
mod roots;
mod route;
mod secret;
mod send;
mod serve;
mod server;
mod sniff;
mod socks;
mod stage;
mod stream;
mod target;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod ticket;
mod tls;
pub mod trust;
mod tunnel;
mod upstream;
mod way;
mod websocket;
mod words;

pub use policy::{BadPolicy, Policy};
pub use serve::{ServeError, serve};
