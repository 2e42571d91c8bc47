//! Holds the state that all connections of one phase share, and makes every access decision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use belljar_spec::Host;
use belljar_spec::egress::{
    DenyReason, EgressAllowed, EgressDenied, EgressEvent, EgressOpened, SecretValue, Via,
};
use belljar_spec::host_rule::Seen;

use crate::http::headers::without_user;
use crate::io::buffer_pool::BufferPool;
use crate::policy::budget::{Account, BudgetExceeded, Budgets, ConnectionGuard};
use crate::policy::{Allowance, Denial, Grant, GrantKind, Policy};
use crate::report::denial_text;
use crate::report::{Reporter, shorten};
use crate::secret_store::SecretStore;
use crate::upstream::permit::Permit;
use crate::upstream::resolve::Resolver;

pub(crate) use crate::upstream::ticket::{Flow, Ticket};

#[derive(Debug)]
pub(crate) struct Proxy {
    list: Mutex<ListInForce>,
    pub(crate) secrets: SecretStore,
    pub(crate) reporter: Reporter,
    pub(crate) resolver: Resolver,
    pub(crate) buffers: BufferPool,
    budget: Arc<Budgets>,
    next_id: Arc<AtomicU64>,
}

/// The rules that hold now, and everything that was allowed and is not over.
#[derive(Debug)]
struct ListInForce {
    policy: Arc<Policy>,
    permits: Vec<(Grant, Weak<Permit>)>,
    /// Entries of accesses that are over are dropped when there are this many.
    prune_at: usize,
}

const MIN_PRUNE: usize = 64;

impl ListInForce {
    fn new(policy: Policy) -> Mutex<Self> {
        Mutex::new(Self { policy: Arc::new(policy), permits: Vec::new(), prune_at: MIN_PRUNE })
    }

    fn issue(&mut self, grant: Grant) -> Arc<Permit> {
        if self.permits.len() >= self.prune_at {
            self.permits.retain(|(_, permit)| permit.strong_count() > 0);
            self.prune_at = MIN_PRUNE.max(2 * self.permits.len());
        }
        let permit = Arc::new(Permit::default());
        self.permits.push((grant, Arc::downgrade(&permit)));
        permit
    }
}

/// What a client asks to reach.
#[derive(Clone, Debug)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) via: Via,
    pub(crate) seen: Seen<'a>,
}

/// Why access is refused, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// The HTTP status: 403 for denied, 400 for contradictory or malformed, 502 to 504 for failed.
    pub(crate) status: u16,
    pub(crate) message: String,
    /// The denial, as recorded. `None`: it was allowed, and failed.
    pub(crate) reason: Option<DenyReason>,
}

/// How a connection ended on which the client never sent anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnusedConnection {
    Closed,
    TimedOut,
}

impl UnusedConnection {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Closed => "closed by the client before it sent anything",
            Self::TimedOut => "the client sent nothing in time",
        }
    }
}

impl Refusal {
    pub(crate) fn denied(reason: DenyReason, message: String) -> Self {
        let status = match reason {
            DenyReason::BadRequest | DenyReason::NamesDiffer => 400,
            // The same as for a name that does not exist.
            DenyReason::PrivateAddress => 502,
            _ => 403,
        };
        Self { status, message, reason: Some(reason) }
    }

    /// The reason as shown to the client. A name that resolves to an address of the host's network looks like a name
    /// that does not exist.
    pub(crate) fn public_reason(&self) -> Option<DenyReason> {
        self.reason.filter(|reason| *reason != DenyReason::PrivateAddress)
    }
}

impl Proxy {
    pub(crate) fn new(policy: Policy, secrets: Vec<SecretValue>, reporter: Reporter) -> Arc<Self> {
        let budget = Arc::new(Budgets::new(policy.spec.budget, policy.spec.per_host));
        let list = ListInForce::new(policy);
        let (resolver, buffers) = (Resolver::default(), BufferPool::default());
        let next_id = Arc::new(AtomicU64::new(1));
        let secrets = SecretStore::new(secrets);
        Arc::new(Self { list, secrets, reporter, resolver, buffers, budget, next_id })
    }

    /// A proxy for the set-up phase: its own policy, no secrets. Budgets and ids are shared with the run.
    pub(crate) fn for_setup(&self, policy: Policy) -> Arc<Self> {
        let (resolver, buffers) = (Resolver::default(), BufferPool::default());
        let (reporter, budget) = (self.reporter.clone(), self.budget.clone());
        let (secrets, next_id) = (self.secrets.withheld(), self.next_id.clone());
        let list = ListInForce::new(policy);
        Arc::new(Self { list, secrets, reporter, resolver, buffers, budget, next_id })
    }

    /// The rules that hold now.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.list().policy.clone()
    }

    /// From here on these rules hold. What was allowed before and is not any more is closed when this returns; the
    /// result is how many accesses that were.
    pub(crate) fn replace_policy(&self, policy: Policy) -> u64 {
        let mut list = self.list();
        list.policy = Arc::new(policy);
        let live =
            list.permits.iter().filter_map(|(grant, permit)| Some((grant, permit.upgrade()?)));
        let mut withdrawn = 0;
        for (grant, permit) in live.filter(|(_, permit)| !permit.is_withdrawn()) {
            if !list.policy.still_allows(grant, permit.holder()) {
                permit.withdraw();
                withdrawn += 1;
            }
        }
        withdrawn
    }

    fn list(&self) -> MutexGuard<'_, ListInForce> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Client connections, now.
    pub(crate) fn open_connections(&self) -> u64 {
        self.budget.open_connections()
    }

    /// Decides, and reports the decision before acting on it.
    pub(crate) fn admit(self: &Arc<Self>, access: &AccessRequest<'_>) -> Result<Ticket, Refusal> {
        let decided = self.decide(access, |policy| {
            let allowance = policy.decide(&access.host, access.port, access.seen)?;
            let (method, path) = method_and_path(access.seen);
            Ok((allowance, GrantKind::Rules { method, path }))
        });
        let (allowance, permit) = decided.map_err(|denial| self.deny(access, denial))?;
        match self.budget.open_request(&access.host) {
            Ok(account) => Ok(self.ticket(access, allowance, Ok(account), permit)),
            Err(exceeded) => Err(self.deny(access, self.budget_denial(&exceeded))),
        }
    }

    /// For a route, whose target the operator wrote. Over budget, the ticket cannot dial.
    pub(crate) fn admit_route(
        self: &Arc<Self>,
        access: &AccessRequest<'_>,
        listen: u16,
    ) -> Result<Ticket, Refusal> {
        let decided = self.decide(access, |policy| {
            let addresses = policy.decide_route(&access.host, access.port, listen)?;
            let rule = format!("route {listen}");
            Ok((Allowance { rule, addresses }, GrantKind::Route { listen }))
        });
        let (allowance, permit) = decided.map_err(|denial| self.deny(access, denial))?;
        let account = self.budget.open_request(&access.host);
        Ok(self.ticket(access, allowance, account, permit))
    }

    /// Under one lock, so that a change of the rules comes either before the decision or after the permit is known.
    fn decide(
        &self,
        access: &AccessRequest<'_>,
        decide: impl FnOnce(&Policy) -> Result<(Allowance, GrantKind), Denial>,
    ) -> Result<(Allowance, Arc<Permit>), Denial> {
        let mut list = self.list();
        let (allowance, kind) = decide(&list.policy)?;
        let (host, port, addresses) = (access.host.clone(), access.port, allowance.addresses);
        let permit = list.issue(Grant { host, port, addresses, kind });
        Ok((allowance, permit))
    }

    fn ticket(
        self: &Arc<Self>,
        access: &AccessRequest<'_>,
        allowance: Allowance,
        account: Result<Account, BudgetExceeded>,
        permit: Arc<Permit>,
    ) -> Ticket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.reporter.send(EgressEvent::Opened(EgressOpened {
            id,
            host: access.host.to_string(),
            port: access.port,
            via: access.via,
            rule: allowance.rule.clone(),
            count: 1,
        }));
        Ticket::new(self, id, access, allowance, account, permit)
    }

    pub(crate) fn deny(&self, access: &AccessRequest<'_>, denial: Denial) -> Refusal {
        let message = denial_text::denied(self.policy().phase, access, &denial);
        let (method, path) = method_and_path(access.seen);
        let Denial { reason, detail } = denial;
        let (host, port) = (&access.host, access.port);
        let span = tracing::debug_span!("connect", %host, port, decision = "denied");
        span.in_scope(|| tracing::debug!(?reason, via = ?access.via));
        self.reporter.send(EgressEvent::Denied(EgressDenied {
            host: access.host.to_string(),
            port: Some(access.port),
            via: access.via,
            reason,
            detail,
            method,
            path,
            count: 1,
        }));
        Refusal::denied(reason, message)
    }

    /// For a request that names no valid host.
    pub(crate) fn deny_unparsed(&self, text: &[u8], via: Via, denial: Denial) -> Refusal {
        let host = shorten(&String::from_utf8_lossy(without_user(text)));
        let Denial { reason, detail } = denial;
        tracing::debug!(host, ?reason, ?via, "request denied");
        let why = detail.as_deref().unwrap_or("it cannot be read");
        let message = match reason {
            DenyReason::NotAName => format!("belljar: {}", denial_text::unreadable(&host, why)),
            _ => format!("belljar: the request for \"{host}\" is refused: {why}."),
        };
        let (port, method, path) = (None, None, None);
        let denied = EgressDenied { host, port, via, reason, detail, method, path, count: 1 };
        self.reporter.send(EgressEvent::Denied(denied));
        Refusal::denied(reason, message)
    }

    /// For a connection on which nothing was requested, so there was nothing to decide: not a denial, and nothing was
    /// dialled.
    pub(crate) fn report_unused(
        &self,
        access: &AccessRequest<'_>,
        started: Instant,
        why: UnusedConnection,
    ) {
        let rule = self.policy().may_allow(&access.host, access.port).unwrap_or_default();
        self.reporter.send(EgressEvent::Allowed(EgressAllowed {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            host: access.host.to_string(),
            port: access.port,
            via: access.via,
            rule,
            address: None,
            method: None,
            path: None,
            status: None,
            bytes_out: 0,
            bytes_in: 0,
            duration_ms: started.elapsed().as_millis() as u64,
            error: Some(why.message().to_owned()),
            count: 1,
        }));
    }

    /// Counts a client connection, before anything is read from it.
    pub(crate) fn open_connection(&self, via: Via) -> Result<ConnectionGuard, Refusal> {
        self.budget.open_connection().map_err(|exceeded| {
            let denial = self.budget_denial(&exceeded);
            let message = format!("belljar: {}", exceeded.message());
            let Refusal { status, reason, .. } = self.deny_unparsed(b"(any)", via, denial);
            Refusal { status, message, reason }
        })
    }

    /// Reports a limit the first time that it is hit.
    pub(crate) fn budget_denial(&self, exceeded: &BudgetExceeded) -> Denial {
        if exceeded.first {
            self.reporter.send(EgressEvent::BudgetHit(exceeded.event()));
        }
        Denial { reason: DenyReason::Budget, detail: Some(exceeded.message()) }
    }
}

pub(crate) fn method_and_path(seen: Seen<'_>) -> (Option<String>, Option<String>) {
    match seen {
        Seen::Nothing => (None, None),
        Seen::Request { method, path } => (Some(method.to_owned()), Some(path.to_owned())),
    }
}
