//! The counts of the test network's servers, kept outside of every sandbox.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A run that floods the world fills no memory here.
const MAX_REQUESTS: usize = 2000;

/// Everything since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCounts {
    /// Connections by `address:port`.
    pub accepts: BTreeMap<String, u64>,
    /// The most connections that were open at once.
    pub at_once: u64,
    /// `A name` and `AAAA name`, as they were asked for.
    pub queries: BTreeMap<String, u64>,
    pub requests: Vec<Request>,
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `address:port`.
    pub at: String,
    /// The name that the TLS client asked for; nothing without TLS.
    pub sni: Option<String>,
    /// Of HTTP/1 the very bytes, of HTTP/2 the same in that form.
    pub head: String,
    pub body: String,
}

impl ServerCounts {
    pub fn accepted(&self, at: &str) -> u64 {
        self.accepts.get(at).copied().unwrap_or(0)
    }

    /// Addresses with connections that are not in this list.
    pub fn beyond(&self, expected: &[&str]) -> Vec<String> {
        self.accepts.keys().filter(|at| !expected.contains(&at.as_str())).cloned().collect()
    }

    /// Whether any request holds this text, in its head or its body.
    pub fn received(&self, text: &str) -> bool {
        self.requests.iter().any(|one| one.head.contains(text) || one.body.contains(text))
    }
}

/// The same, shared by the servers.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    seen: ServerCounts,
    open: u64,
}

/// Lives as long as its connection.
#[derive(Debug)]
pub(super) struct Open(Watch);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.with(|inner| inner.open = inner.open.saturating_sub(1));
    }
}

impl Watch {
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn accepted(&self, at: SocketAddr) -> Open {
        self.with(|inner| {
            *inner.seen.accepts.entry(spelled(at)).or_default() += 1;
            inner.open += 1;
            inner.seen.at_once = inner.seen.at_once.max(inner.open);
        });
        Open(self.clone())
    }

    /// How often the same was asked before.
    pub(super) fn asked(&self, kind: &str, name: &str) -> u64 {
        self.with(|inner| {
            let count = inner.seen.queries.entry(format!("{kind} {name}")).or_default();
            *count += 1;
            *count - 1
        })
    }

    pub(super) fn requested(&self, request: Request) {
        self.with(|inner| {
            if inner.seen.requests.len() < MAX_REQUESTS {
                inner.seen.requests.push(request);
            }
        });
    }

    pub(super) fn so_far(&self) -> ServerCounts {
        self.with(|inner| inner.seen.clone())
    }

    pub(super) fn reset(&self) {
        self.with(|inner| {
            inner.seen = ServerCounts { at_once: inner.open, ..ServerCounts::default() };
        });
    }
}

/// As addresses are written everywhere here: IPv4 in IPv6 clothes is IPv4.
pub(super) fn spelled(at: SocketAddr) -> String {
    let address: IpAddr = at.ip().to_canonical();
    SocketAddr::new(address, at.port()).to_string()
}
