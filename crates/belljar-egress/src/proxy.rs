//! One run's proxy: everything that its doors share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use belljar_spec::Host;
use belljar_spec::egress::{
    DenyReason, EgressAllowed, EgressDenied, EgressNews, EgressOpened, SecretValue, Via,
};
use belljar_spec::host_rule::Seen;

use crate::http::headers::without_user;
use crate::io::buffer_pool::Buffers;
use crate::policy::budget::{Account, Ledger, Over, Presence};
use crate::policy::{Addresses, Allowance, Denial, Policy};
use crate::report::denial_text;
use crate::report::{Reporter, cut};
use crate::upstream::resolve::Resolver;

pub(crate) use crate::upstream::ticket::{Flow, Ticket};

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) policy: Policy,
    pub(crate) secrets: Vec<SecretValue>,
    pub(crate) reporter: Reporter,
    pub(crate) resolver: Resolver,
    pub(crate) buffers: Buffers,
    budget: Arc<Ledger>,
    next: Arc<AtomicU64>,
}

/// What somebody inside asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) via: Via,
    pub(crate) seen: Seen<'a>,
}

/// Why it is not to be had, as the one who asked is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub(crate) struct Refusal {
    /// Of an HTTP answer: 403 for what is denied, 400 for what contradicts itself, 502 and 504 for what did
    /// not work.
    pub(crate) status: u16,
    pub(crate) words: String,
    /// As the record has it. `None`: it was allowed, and did not work.
    pub(crate) reason: Option<DenyReason>,
}

/// How a connection ended on which the client never said anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unused {
    Closed,
    Silent,
}

impl Unused {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Closed => "closed by the client before it sent anything",
            Self::Silent => "the client sent nothing in time",
        }
    }
}

impl Refusal {
    pub(crate) fn denied(reason: DenyReason, words: String) -> Self {
        let status = match reason {
            DenyReason::BadRequest | DenyReason::NamesDiffer => 400,
            // As for a name that is not there.
            DenyReason::PrivateAddress => 502,
            _ => 403,
        };
        Self { status, words, reason: Some(reason) }
    }

    /// As whoever asked is told. That a name exists and leads to an address of the host's network is not told apart
    /// from a name that does not exist.
    pub(crate) fn told_reason(&self) -> Option<DenyReason> {
        self.reason.filter(|reason| *reason != DenyReason::PrivateAddress)
    }
}

impl Proxy {
    pub(crate) fn new(policy: Policy, secrets: Vec<SecretValue>, reporter: Reporter) -> Arc<Self> {
        let budget = Arc::new(Ledger::new(policy.spec.budget, policy.spec.per_host));
        let (resolver, buffers) = (Resolver::default(), Buffers::default());
        let next = Arc::new(AtomicU64::new(1));
        Arc::new(Self { policy, secrets, reporter, resolver, buffers, budget, next })
    }

    /// For what comes before this one, with a policy of its own and without secrets. Budgets are the run's, whoever
    /// uses them, and its numbers are given once.
    pub(crate) fn before(&self, policy: Policy) -> Arc<Self> {
        let (resolver, buffers) = (Resolver::default(), Buffers::default());
        let (reporter, budget) = (self.reporter.clone(), self.budget.clone());
        let (secrets, next) = (Vec::new(), self.next.clone());
        Arc::new(Self { policy, secrets, reporter, resolver, buffers, budget, next })
    }

    /// Connections from inside, now.
    pub(crate) fn present(&self) -> u64 {
        self.budget.present()
    }

    /// Decides, and tells what was decided before anything is done about it.
    pub(crate) fn admit(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Ticket, Refusal> {
        let allowance = self
            .policy
            .decide(&ask.host, ask.port, ask.seen)
            .map_err(|denial| self.deny(ask, denial))?;
        match self.budget.begin(&ask.host) {
            Ok(account) => Ok(self.ticket(ask, allowance, Ok(account))),
            Err(over) => Err(self.deny(ask, self.budget_denial(&over))),
        }
    }

    /// For a route, whose target the operator wrote. Beyond its budget the ticket cannot be dialled.
    pub(crate) fn admit_route(self: &Arc<Self>, ask: &Ask<'_>, listen: u16) -> Ticket {
        let addresses = match self.policy.decide(&ask.host, ask.port, Seen::Nothing) {
            Ok(allowance) => allowance.addresses,
            Err(_) if ask.host.name().is_none() => Addresses::Written,
            Err(_) => Addresses::Public,
        };
        let account = self.budget.begin(&ask.host);
        self.ticket(ask, Allowance { rule: format!("route {listen}"), addresses }, account)
    }

    fn ticket(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        allowance: Allowance,
        account: Result<Account, Over>,
    ) -> Ticket {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.reporter.tell(EgressNews::Opened(EgressOpened {
            id,
            host: ask.host.to_string(),
            port: ask.port,
            via: ask.via,
            rule: allowance.rule.clone(),
            count: 1,
        }));
        Ticket::new(self, id, ask, allowance, account)
    }

    pub(crate) fn deny(&self, ask: &Ask<'_>, denial: Denial) -> Refusal {
        let words = denial_text::refusal(self.policy.whose, ask, &denial);
        let (method, path) = shown(ask.seen);
        let Denial { reason, detail } = denial;
        self.reporter.tell(EgressNews::Denied(EgressDenied {
            host: ask.host.to_string(),
            port: Some(ask.port),
            via: ask.via,
            reason,
            detail,
            method,
            path,
            count: 1,
        }));
        Refusal::denied(reason, words)
    }

    /// For what does not even name a host.
    pub(crate) fn deny_text(&self, text: &[u8], via: Via, denial: Denial) -> Refusal {
        let host = cut(&String::from_utf8_lossy(without_user(text)));
        let Denial { reason, detail } = denial;
        let why = detail.as_deref().unwrap_or("it cannot be read");
        let words = match reason {
            DenyReason::NotAName => format!("belljar: {}", denial_text::unreadable(&host, why)),
            _ => format!("belljar: the request for \"{host}\" is refused: {why}."),
        };
        let (port, method, path) = (None, None, None);
        let denied = EgressDenied { host, port, via, reason, detail, method, path, count: 1 };
        self.reporter.tell(EgressNews::Denied(denied));
        Refusal::denied(reason, words)
    }

    /// For a connection to a host in which nothing was asked, so that there was nothing to decide about: it is no
    /// denial, and nobody was dialled.
    pub(crate) fn tell_unused(&self, ask: &Ask<'_>, began: Instant, why: Unused) {
        let rule = self.policy.may_allow(&ask.host, ask.port).unwrap_or_default();
        self.reporter.tell(EgressNews::Allowed(EgressAllowed {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            host: ask.host.to_string(),
            port: ask.port,
            via: ask.via,
            rule,
            address: None,
            method: None,
            path: None,
            status: None,
            bytes_out: 0,
            bytes_in: 0,
            duration_ms: began.elapsed().as_millis() as u64,
            error: Some(why.words().to_owned()),
            count: 1,
        }));
    }

    /// For a connection that comes from inside, before anything is read from it.
    pub(crate) fn enter(&self, via: Via) -> Result<Presence, Refusal> {
        self.budget.enter().map_err(|over| {
            let denial = self.budget_denial(&over);
            let words = format!("belljar: {}", over.words());
            let Refusal { status, reason, .. } = self.deny_text(b"(any)", via, denial);
            Refusal { status, words, reason }
        })
    }

    /// Tells of a limit the first time that it stands in the way.
    pub(crate) fn budget_denial(&self, over: &Over) -> Denial {
        if over.first {
            self.reporter.tell(EgressNews::BudgetHit(over.news()));
        }
        Denial { reason: DenyReason::Budget, detail: Some(over.words()) }
    }
}

pub(crate) fn shown(seen: Seen<'_>) -> (Option<String>, Option<String>) {
    match seen {
        Seen::Nothing => (None, None),
        Seen::Request { method, path } => (Some(method.to_owned()), Some(path.to_owned())),
    }
}
