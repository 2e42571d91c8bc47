//! Reports decisions: events for the supervisor, merged and rate-limited, and the texts of denials for the client.

pub(crate) mod denial_text;
mod merge;
mod rate_limit;
mod repeats;
mod reporter;

pub(crate) use reporter::{Reporter, shorten};
