//! Something that was allowed and is under way: what it may do, what it did, and the telling of its end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, EgressAllowed, EgressNews};
use belljar_spec::host_rule::Seen;
use tokio::net::TcpStream;

use crate::policy::budget::{Account, Over, What};
use crate::policy::{Addresses, Allowance, Denial};
use crate::proxy::{Ask, Proxy, Refusal, shown};
use crate::report::denial_text;
use crate::upstream::address::may_lead_to;
use crate::upstream::dial::{DialError, dial};
use crate::upstream::resolve::ResolveError;

/// Whether bytes may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Passes,
    /// A budget is spent: these bytes must not be passed on, and the connection is to be closed.
    Stops,
}

/// Its end is told when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    proxy: Arc<Proxy>,
    host: Host,
    addresses: Addresses,
    facts: EgressAllowed,
    account: Result<Account, Over>,
    began: Instant,
    ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Told,
    /// It turned out that it is not allowed, which was told already.
    Silent,
}

impl Ticket {
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        id: u64,
        ask: &Ask<'_>,
        allowance: Allowance,
        account: Result<Account, Over>,
    ) -> Self {
        let (method, path) = shown(ask.seen);
        let facts = EgressAllowed {
            id,
            host: ask.host.to_string(),
            port: ask.port,
            via: ask.via,
            rule: allowance.rule,
            address: None,
            method,
            path,
            status: None,
            bytes_out: 0,
            bytes_in: 0,
            duration_ms: 0,
            error: None,
            count: 1,
        };
        Self {
            proxy: proxy.clone(),
            host: ask.host.clone(),
            addresses: allowance.addresses,
            facts,
            account,
            began: Instant::now(),
            ending: Ending::Told,
        }
    }

    /// Connects to the host: each of its addresses is checked, and the one that is dialled is one that was.
    pub(crate) async fn dial(&mut self) -> Result<TcpStream, Refusal> {
        if let Err(over) = &self.account {
            let denial = self.proxy.budget_denial(over);
            return Err(self.turn_down(denial));
        }
        let addresses = self.resolve().await?;
        match dial(&addresses, self.facts.port).await {
            Ok((stream, address)) => {
                self.facts.address = Some(address);
                Ok(stream)
            }
            Err(error) => {
                let (status, told) = match &error {
                    DialError::TimedOut => (504, "it does not answer"),
                    DialError::Refused(_) => (503, "it refuses the connection"),
                    DialError::Failed(..) | DialError::NoAddress => {
                        (502, "no connection can be made")
                    }
                };
                Err(self.failed_because(status, told, error.to_string()))
            }
        }
    }

    async fn resolve(&mut self) -> Result<Vec<IpAddr>, Refusal> {
        let name = match &self.host {
            Host::Address(address) if may_lead_to(*address, self.addresses) => {
                return Ok(vec![*address]);
            }
            Host::Address(_) => return Err(self.turn_down(DenyReason::AddressNotListed.into())),
            Host::Name(name) => name,
        };
        match self.proxy.resolver.addresses(name, self.addresses).await {
            Ok(addresses) => Ok(addresses),
            Err(ResolveError::NotAllowed(address)) => {
                let detail = Some(address.to_string());
                Err(self.turn_down(Denial { reason: DenyReason::PrivateAddress, detail }))
            }
            Err(error @ (ResolveError::TimedOut | ResolveError::NotFound(_))) => {
                Err(self.failed_because(502, denial_text::LEADS_NOWHERE, error.to_string()))
            }
        }
    }

    /// To be asked before the bytes are passed on.
    pub(crate) fn count_out(&mut self, bytes: u64) -> Flow {
        let flow = self.take(What::BytesOut, bytes);
        if flow == Flow::Passes {
            self.facts.bytes_out += bytes;
        }
        flow
    }

    /// To be asked before the bytes are passed on.
    pub(crate) fn count_in(&mut self, bytes: u64) -> Flow {
        let flow = self.take(What::BytesIn, bytes);
        if flow == Flow::Passes {
            self.facts.bytes_in += bytes;
        }
        flow
    }

    fn take(&mut self, what: What, bytes: u64) -> Flow {
        let over = match &self.account {
            Ok(account) => match account.take(what, bytes) {
                Ok(()) => return Flow::Passes,
                Err(over) => over,
            },
            Err(over) => over.clone(),
        };
        let denial = self.proxy.budget_denial(&over);
        self.facts.error = denial.detail;
        Flow::Stops
    }

    pub(crate) fn status(&mut self, status: u16) {
        self.facts.status = Some(status);
    }

    /// It was allowed, and did not work, for a reason that may be told.
    pub(crate) fn failed(&mut self, status: u16, why: &'static str) -> Refusal {
        self.failed_because(status, why, why.to_owned())
    }

    /// The same, where what was found out is for the record alone.
    pub(crate) fn failed_because(
        &mut self,
        status: u16,
        told: &'static str,
        why: String,
    ) -> Refusal {
        self.facts.error = Some(why);
        let words = denial_text::failure(&self.host, self.facts.port, self.facts.via, told);
        Refusal { status, words, reason: None }
    }

    /// Nothing passed in either direction.
    pub(crate) fn is_unused(&self) -> bool {
        self.facts.bytes_out == 0 && self.facts.bytes_in == 0
    }

    /// What went wrong, as the record has it.
    pub(crate) fn error(&self) -> Option<&str> {
        self.facts.error.as_deref()
    }

    /// Somebody else tried the same in the meantime.
    pub(crate) fn failed_likewise(&mut self, refusal: &Refusal, why: &str) -> Refusal {
        self.facts.error = Some(why.to_owned());
        refusal.clone()
    }

    /// It was allowed, and what was seen later is not.
    pub(crate) fn denied(&mut self, denial: Denial) -> Refusal {
        let (method, path) = (self.facts.method.as_deref(), self.facts.path.as_deref());
        let seen = match (method, path) {
            (Some(method), Some(path)) => Seen::Request { method, path },
            _ => Seen::Nothing,
        };
        let (port, via) = (self.facts.port, self.facts.via);
        let refusal = self.proxy.deny(&Ask { host: self.host.clone(), port, via, seen }, denial);
        self.facts.error = Some(refusal.words.clone());
        refusal
    }

    /// The same, before anything was connected.
    fn turn_down(&mut self, denial: Denial) -> Refusal {
        self.ending = Ending::Silent;
        self.denied(denial)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.facts.duration_ms = self.began.elapsed().as_millis() as u64;
        if self.ending == Ending::Told {
            self.proxy.reporter.tell(EgressNews::Allowed(self.facts.clone()));
        }
    }
}
