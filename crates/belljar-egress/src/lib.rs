//! The egress proxy: the only network access of a sandbox. It runs as its own process, one per run.
//!
//! Connections come from the sandbox, so every byte of them is hostile. The proxy decides what may be reached, adds
//! credentials to the requests that get them, and reports every decision to the supervisor over one socket
//! ([`control`]). It knows no backend, no record and no run directory. When it exits, every connection is closed.
//!
//! A connection flows through the folders in this order:
//! 1. [`serve()`] receives listeners, connections and the policy from the supervisor.
//! 2. `inbound` accepts it, detects the protocol, and reads what it asks for: CONNECT, SOCKS, a request in absolute
//!    form, or a request on a route's port.
//! 3. `policy` decides: the rules, then the budget. Allowed access gets a ticket, and only a ticket can dial.
//! 4. `http` checks each request that the proxy can read, and changes it: headers, framing, credentials, masking.
//! 5. `upstream` resolves the name, checks every address, connects, and speaks TLS where the proxy has to.
//! 6. `report` sends the events to the supervisor, and writes the texts of refusals for the client.

pub mod control;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod inbound;
mod io;
mod limits;
mod login_rules;
mod policy;
mod proxy;
mod report;
mod secret_store;
mod serve;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod token_request;
mod upstream;

pub use inbound::intercept::trust;
pub use login_rules::login_rules;
pub use serve::{ServeError, serve};
