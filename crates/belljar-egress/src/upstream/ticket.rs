//! A ticket for one allowed access: only a ticket can dial, and it reports when it is dropped.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, EgressAllowed, EgressEvent};
use belljar_spec::host_rule::Seen;
use tracing::Instrument;

use crate::policy::budget::{Account, BudgetExceeded, BudgetKind};
use crate::policy::{AddressScope, Allowance, Denial};
use crate::proxy::{AccessRequest, Proxy, Refusal, method_and_path};
use crate::report::denial_text;
use crate::upstream::address::is_allowed_address;
use crate::upstream::dial::{DialError, dial};
use crate::upstream::permit::Permit;
use crate::upstream::resolve::ResolveError;
use crate::upstream::socket::UpstreamSocket;

/// For the record.
const WITHDRAWN: &str = "closed, because the run's network list was changed";

/// Whether bytes may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Passes,
    /// A budget is spent, or the access is no longer allowed: the bytes must not be sent, and the connection has to be
    /// closed.
    Stops,
}

/// Reports the end of the access on drop.
#[derive(Debug)]
pub(crate) struct Ticket {
    proxy: Arc<Proxy>,
    host: Host,
    addresses: AddressScope,
    permit: Arc<Permit>,
    event: EgressAllowed,
    account: Result<Account, BudgetExceeded>,
    started: Instant,
    end_report: EndReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReport {
    Send,
    /// It was denied after all, which is already reported.
    Skip,
}

impl Ticket {
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        id: u64,
        access: &AccessRequest<'_>,
        allowance: Allowance,
        account: Result<Account, BudgetExceeded>,
        permit: Arc<Permit>,
    ) -> Self {
        let (method, path) = method_and_path(access.seen);
        let event = EgressAllowed {
            id,
            host: access.host.to_string(),
            port: access.port,
            via: access.via,
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
            host: access.host.clone(),
            addresses: allowance.addresses,
            permit,
            event,
            account,
            started: Instant::now(),
            end_report: EndReport::Send,
        }
    }

    /// Connects to the host. Every address is checked, and only a checked one is dialled.
    pub(crate) async fn dial(&mut self) -> Result<UpstreamSocket, Refusal> {
        let (host, port, rule) = (&self.host, self.event.port, &self.event.rule);
        let span = tracing::debug_span!("connect", %host, port, decision = "allowed", rule);
        let permit = self.permit.clone();
        let dialled = tokio::select! {
            biased;
            () = permit.withdrawn() => None,
            dialled = self.dial_checked().instrument(span) => Some(dialled),
        };
        match dialled.filter(|_| !self.permit.is_withdrawn()) {
            Some(dialled) => dialled,
            None => Err(self.denied_before_dial(DenyReason::NotListed.into())),
        }
    }

    async fn dial_checked(&mut self) -> Result<UpstreamSocket, Refusal> {
        if let Err(exceeded) = &self.account {
            let denial = self.proxy.budget_denial(exceeded);
            return Err(self.denied_before_dial(denial));
        }
        let addresses = self.resolve().await?;
        match dial(&addresses, self.event.port, &self.permit).await {
            Ok((stream, address)) => {
                tracing::debug!(%address, "connected");
                self.event.address = Some(address);
                Ok(stream)
            }
            Err(error) => {
                tracing::debug!(%error, "not connected");
                let (status, public) = match &error {
                    DialError::TimedOut => (504, "it does not answer"),
                    DialError::Refused(_) => (503, "it refuses the connection"),
                    DialError::Failed(..) | DialError::NoAddress => {
                        (502, "no connection can be made")
                    }
                };
                Err(self.failed_because(status, public, error.to_string()))
            }
        }
    }

    async fn resolve(&mut self) -> Result<Vec<IpAddr>, Refusal> {
        let name = match &self.host {
            Host::Address(address) if is_allowed_address(*address, self.addresses) => {
                return Ok(vec![*address]);
            }
            Host::Address(_) => {
                return Err(self.denied_before_dial(DenyReason::AddressNotListed.into()));
            }
            Host::Name(name) => name,
        };
        match self.proxy.resolver.addresses(name, self.addresses).await {
            Ok(addresses) => Ok(addresses),
            Err(ResolveError::NotAllowed(address)) => {
                tracing::debug!(%address, "resolved to an address that is not allowed");
                let detail = Some(address.to_string());
                Err(self.denied_before_dial(Denial { reason: DenyReason::PrivateAddress, detail }))
            }
            Err(error @ (ResolveError::TimedOut | ResolveError::NotFound(_))) => {
                tracing::debug!(%error, "not resolved");
                Err(self.failed_because(502, denial_text::NO_REACHABLE_ADDRESS, error.to_string()))
            }
        }
    }

    /// To be called before the bytes are sent.
    pub(crate) fn count_out(&mut self, bytes: u64) -> Flow {
        let flow = self.take(BudgetKind::BytesOut, bytes);
        if flow == Flow::Passes {
            self.event.bytes_out += bytes;
        }
        flow
    }

    /// To be called before the bytes are sent.
    pub(crate) fn count_in(&mut self, bytes: u64) -> Flow {
        let flow = self.take(BudgetKind::BytesIn, bytes);
        if flow == Flow::Passes {
            self.event.bytes_in += bytes;
        }
        flow
    }

    fn take(&mut self, what: BudgetKind, bytes: u64) -> Flow {
        if self.permit.is_withdrawn() {
            return Flow::Stops;
        }
        let exceeded = match &self.account {
            Ok(account) => match account.take(what, bytes) {
                Ok(()) => return Flow::Passes,
                Err(exceeded) => exceeded,
            },
            Err(exceeded) => exceeded.clone(),
        };
        let denial = self.proxy.budget_denial(&exceeded);
        self.event.error = denial.detail;
        Flow::Stops
    }

    pub(crate) fn status(&mut self, status: u16) {
        self.event.status = Some(status);
    }

    /// The access was allowed and failed, for a reason that the client may see.
    pub(crate) fn failed(&mut self, status: u16, detail: &'static str) -> Refusal {
        self.failed_because(status, detail, detail.to_owned())
    }

    /// The same, with a detail that is for the record only.
    pub(crate) fn failed_because(
        &mut self,
        status: u16,
        public: &'static str,
        detail: String,
    ) -> Refusal {
        self.event.error = Some(detail);
        let (status, public) = match self.permit.is_withdrawn() {
            // Whatever failed, this is why.
            true => (403, "it is no longer on this run's allow-list"),
            false => (status, public),
        };
        let message = denial_text::failed(&self.host, self.event.port, self.event.via, public);
        Refusal { status, message, reason: None }
    }

    /// Nothing passed in either direction.
    pub(crate) fn is_unused(&self) -> bool {
        self.event.bytes_out == 0 && self.event.bytes_in == 0
    }

    /// The error, as recorded.
    pub(crate) fn error(&self) -> Option<&str> {
        self.event.error.as_deref()
    }

    /// Another request failed in the same way in the meantime.
    pub(crate) fn failed_like(&mut self, refusal: &Refusal, detail: &str) -> Refusal {
        self.event.error = Some(detail.to_owned());
        refusal.clone()
    }

    /// The access was allowed, and denied by what was read later.
    pub(crate) fn denied(&mut self, denial: Denial) -> Refusal {
        let (method, path) = (self.event.method.as_deref(), self.event.path.as_deref());
        let seen = match (method, path) {
            (Some(method), Some(path)) => Seen::Request { method, path },
            _ => Seen::Nothing,
        };
        let (port, via) = (self.event.port, self.event.via);
        let refusal =
            self.proxy.deny(&AccessRequest { host: self.host.clone(), port, via, seen }, denial);
        self.event.error = Some(refusal.message.clone());
        refusal
    }

    /// The same, before anything was connected.
    fn denied_before_dial(&mut self, denial: Denial) -> Refusal {
        self.end_report = EndReport::Skip;
        self.denied(denial)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.permit.end_access();
        if self.permit.is_withdrawn() {
            self.event.error = Some(WITHDRAWN.to_owned());
        }
        self.event.duration_ms = self.started.elapsed().as_millis() as u64;
        if self.end_report == EndReport::Send {
            self.proxy.reporter.send(EgressEvent::Allowed(self.event.clone()));
        }
    }
}
