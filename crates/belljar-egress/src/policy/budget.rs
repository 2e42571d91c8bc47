//! Counts bytes, requests and connections of the run and of each host against their limits.
//!
//! What would exceed a limit does not pass, so a limit is never exceeded by a byte.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_spec::Host;
use belljar_spec::egress::{Budget, EgressBudgetHit};

/// Connections at once, if the policy sets no limit: each costs memory.
pub(crate) const DEFAULT_CONNECTIONS: u32 = 512;
/// Hosts that are counted separately. A run that asks for more is refused, since forgetting a host would reset its
/// budget.
const MAX_HOSTS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetKind {
    BytesOut,
    BytesIn,
    Connections,
    Requests,
    Hosts,
}

impl BudgetKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BytesOut => "bytes_out",
            Self::BytesIn => "bytes_in",
            Self::Connections => "connections",
            Self::Requests => "requests",
            Self::Hosts => "hosts",
        }
    }
}

/// A limit that would be exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BudgetExceeded {
    pub(crate) what: BudgetKind,
    pub(crate) limit: u64,
    /// `None`: the limit of the whole run.
    pub(crate) host: Option<String>,
    /// Only the first hit is reported.
    pub(crate) first: bool,
}

impl BudgetExceeded {
    pub(crate) fn event(&self) -> EgressBudgetHit {
        let Self { what, limit, host, .. } = self;
        EgressBudgetHit { what: what.name().to_owned(), limit: *limit, host: host.clone() }
    }

    pub(crate) fn message(&self) -> String {
        let holder = self.host.as_deref().unwrap_or("the run");
        format!("{} of {holder} reached the limit of {}", self.what.name(), self.limit)
    }
}

/// What the run or one host has used.
#[derive(Debug, Default)]
struct Usage {
    host: Option<String>,
    limits: Budget,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    reported: [AtomicBool; 5],
}

impl Usage {
    fn limit_of(what: BudgetKind, limits: &Budget) -> Option<u64> {
        match what {
            BudgetKind::BytesOut => limits.bytes_out,
            BudgetKind::BytesIn => limits.bytes_in,
            BudgetKind::Connections => limits.connections.map(u64::from),
            BudgetKind::Requests => limits.requests,
            BudgetKind::Hosts => Some(MAX_HOSTS as u64),
        }
    }

    fn counter(&self, what: BudgetKind) -> &AtomicU64 {
        match what {
            BudgetKind::BytesOut => &self.bytes_out,
            BudgetKind::BytesIn => &self.bytes_in,
            BudgetKind::Connections => &self.connections,
            BudgetKind::Requests | BudgetKind::Hosts => &self.requests,
        }
    }

    fn exceeded(&self, what: BudgetKind) -> BudgetExceeded {
        let limit = Self::limit_of(what, &self.limits).unwrap_or(u64::MAX);
        let first = !self.reported[what as usize].swap(true, Relaxed);
        BudgetExceeded { what, limit, host: self.host.clone(), first }
    }

    fn take(&self, what: BudgetKind, amount: u64) -> Result<(), BudgetExceeded> {
        let limit = Self::limit_of(what, &self.limits).unwrap_or(u64::MAX);
        let counter = self.counter(what);
        let more = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        counter.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|_| self.exceeded(what))
    }

    fn give_back(&self, what: BudgetKind, amount: u64) {
        self.counter(what).fetch_sub(amount, Relaxed);
    }
}

/// All budgets of a run.
#[derive(Debug)]
pub(crate) struct Budgets {
    run: Arc<Usage>,
    /// Client connections, whatever they ask for.
    inbound: Arc<Usage>,
    per_host: Budget,
    hosts: Mutex<HashMap<Host, Arc<Usage>>>,
}

impl Budgets {
    pub(crate) fn new(run: Budget, per_host: Budget) -> Self {
        let run = Budget { connections: run.connections.or(Some(DEFAULT_CONNECTIONS)), ..run };
        let used = || Arc::new(Usage { limits: run, ..Usage::default() });
        Self { run: used(), inbound: used(), per_host, hosts: Mutex::default() }
    }

    /// Counts a client connection.
    pub(crate) fn open_connection(&self) -> Result<ConnectionGuard, BudgetExceeded> {
        // The run's limit, so that it is reported once.
        self.inbound
            .take(BudgetKind::Connections, 1)
            .map_err(|_| self.run.exceeded(BudgetKind::Connections))?;
        Ok(ConnectionGuard { inbound: self.inbound.clone() })
    }

    /// Client connections, now.
    pub(crate) fn open_connections(&self) -> u64 {
        self.inbound.connections.load(Relaxed)
    }

    /// Counts one request or tunnel to a host.
    pub(crate) fn open_request(&self, host: &Host) -> Result<Account, BudgetExceeded> {
        let host = self.host(host)?;
        let mut account = Account { run: self.run.clone(), host, counted: false };
        account.take(BudgetKind::Connections, 1)?;
        account.counted = true;
        account.take(BudgetKind::Requests, 1)?;
        Ok(account)
    }

    fn host(&self, host: &Host) -> Result<Option<Arc<Usage>>, BudgetExceeded> {
        let Budget { bytes_out, bytes_in, connections, requests } = self.per_host;
        let cumulative = bytes_out.is_some() || bytes_in.is_some() || requests.is_some();
        if !cumulative && connections.is_none() {
            return Ok(None);
        }
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = hosts.get(host) {
            return Ok(Some(used.clone()));
        }
        if hosts.len() >= MAX_HOSTS && !cumulative {
            hosts.retain(|_, used| used.connections.load(Relaxed) > 0);
        }
        if hosts.len() >= MAX_HOSTS {
            return Err(self.run.exceeded(BudgetKind::Hosts));
        }
        let name = Some(host.to_string());
        let used = Arc::new(Usage { host: name, limits: self.per_host, ..Usage::default() });
        hosts.insert(host.clone(), used.clone());
        Ok(Some(used))
    }
}

/// A client connection, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    inbound: Arc<Usage>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.inbound.give_back(BudgetKind::Connections, 1);
    }
}

/// The budgets that one request or tunnel counts against, until this is dropped.
#[derive(Debug)]
pub(crate) struct Account {
    run: Arc<Usage>,
    host: Option<Arc<Usage>>,
    counted: bool,
}

impl Account {
    pub(crate) fn take(&self, what: BudgetKind, amount: u64) -> Result<(), BudgetExceeded> {
        self.run.take(what, amount)?;
        let host_share = self.host.as_ref().map_or(Ok(()), |host| host.take(what, amount));
        host_share.inspect_err(|_| self.run.give_back(what, amount))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.counted {
            self.run.give_back(BudgetKind::Connections, 1);
            if let Some(host) = &self.host {
                host.give_back(BudgetKind::Connections, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_limit_is_reached_and_never_exceeded() {
        let run = Budget { bytes_out: Some(10), ..Budget::default() };
        let budgets = Budgets::new(run, Budget::default());
        let account = budgets.open_request(&host("a")).unwrap();
        account.take(BudgetKind::BytesOut, 7).unwrap();
        let exceeded = account.take(BudgetKind::BytesOut, 4).unwrap_err();
        assert_eq!(
            (exceeded.what, exceeded.limit, exceeded.first),
            (BudgetKind::BytesOut, 10, true)
        );
        account.take(BudgetKind::BytesOut, 3).unwrap();
        assert!(!account.take(BudgetKind::BytesOut, 1).unwrap_err().first);
        account.take(BudgetKind::BytesIn, u64::MAX).unwrap();
        account.take(BudgetKind::BytesIn, 1).unwrap_err();
    }

    #[test]
    fn each_host_has_a_budget_and_a_refusal_costs_the_run_nothing() {
        let run = Budget { requests: Some(3), ..Budget::default() };
        let per_host = Budget { requests: Some(1), ..Budget::default() };
        let budgets = Budgets::new(run, per_host);
        budgets.open_request(&host("a")).unwrap();
        let exceeded = budgets.open_request(&host("a")).unwrap_err();
        assert_eq!(exceeded.host.as_deref(), Some("a"));
        budgets.open_request(&host("b")).unwrap();
        budgets.open_request(&host("c")).unwrap();
        assert_eq!(budgets.open_request(&host("d")).unwrap_err().host, None);
    }

    #[test]
    fn connections_are_counted_while_they_last() {
        let two = Budget { connections: Some(2), ..Budget::default() };
        let budgets = Budgets::new(two, Budget { connections: Some(1), ..Budget::default() });
        let first = budgets.open_request(&host("a")).unwrap();
        assert_eq!(budgets.open_request(&host("a")).unwrap_err().host.as_deref(), Some("a"));
        let _second = budgets.open_request(&host("b")).unwrap();
        assert_eq!(budgets.open_request(&host("c")).unwrap_err().host, None);
        drop(first);
        budgets.open_request(&host("a")).unwrap();
        let inside: Vec<_> = (0..2).map(|_| budgets.open_connection().unwrap()).collect();
        budgets.open_connection().unwrap_err();
        drop(inside);
        budgets.open_connection().unwrap();
    }

    #[test]
    fn the_list_of_hosts_is_bounded_and_forgets_no_budget() {
        let cumulative = Budget { bytes_out: Some(1), ..Budget::default() };
        let budgets = Budgets::new(Budget::default(), cumulative);
        for number in 0..MAX_HOSTS {
            budgets.open_request(&host(&format!("h{number}.example"))).unwrap();
        }
        assert_eq!(budgets.open_request(&host("one.more")).unwrap_err().what, BudgetKind::Hosts);
        budgets.open_request(&host("h0.example")).unwrap();

        let passing = Budget { connections: Some(1), ..Budget::default() };
        let budgets = Budgets::new(Budget::default(), passing);
        for number in 0..2 * MAX_HOSTS {
            budgets.open_request(&host(&format!("h{number}.example"))).unwrap();
        }
    }
}
