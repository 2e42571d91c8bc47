//! How much may get out and in, of the run and of each host. What would go beyond a limit does not pass, so a
//! limit is never exceeded by a byte.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_spec::Host;
use belljar_spec::egress::{Budget, EgressBudgetHit};

/// Connections at once, where nothing is said: each costs memory.
pub(crate) const USUAL_CONNECTIONS: u32 = 512;
/// Hosts that are counted apart. A run that asks for more gets no further ones, since forgetting one would
/// give it a new budget.
const MOST_HOSTS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    BytesOut,
    BytesIn,
    Connections,
    Requests,
    Hosts,
}

impl What {
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

/// A limit that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) what: What,
    pub(crate) limit: u64,
    /// `None`: the whole run's.
    pub(crate) host: Option<String>,
    /// Only the first time is news.
    pub(crate) first: bool,
}

impl Over {
    pub(crate) fn news(&self) -> EgressBudgetHit {
        let Self { what, limit, host, .. } = self;
        EgressBudgetHit { what: what.name().to_owned(), limit: *limit, host: host.clone() }
    }

    pub(crate) fn words(&self) -> String {
        let whose = self.host.as_deref().unwrap_or("the run");
        format!("{} of {whose} reached the limit of {}", self.what.name(), self.limit)
    }
}

/// What one holder of a budget has used.
#[derive(Debug, Default)]
struct Used {
    host: Option<String>,
    limits: Budget,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    told: [AtomicBool; 5],
}

impl Used {
    fn of(what: What, limits: &Budget) -> Option<u64> {
        match what {
            What::BytesOut => limits.bytes_out,
            What::BytesIn => limits.bytes_in,
            What::Connections => limits.connections.map(u64::from),
            What::Requests => limits.requests,
            What::Hosts => Some(MOST_HOSTS as u64),
        }
    }

    fn counter(&self, what: What) -> &AtomicU64 {
        match what {
            What::BytesOut => &self.bytes_out,
            What::BytesIn => &self.bytes_in,
            What::Connections => &self.connections,
            What::Requests | What::Hosts => &self.requests,
        }
    }

    fn over(&self, what: What) -> Over {
        let limit = Self::of(what, &self.limits).unwrap_or(u64::MAX);
        let first = !self.told[what as usize].swap(true, Relaxed);
        Over { what, limit, host: self.host.clone(), first }
    }

    fn take(&self, what: What, amount: u64) -> Result<(), Over> {
        let limit = Self::of(what, &self.limits).unwrap_or(u64::MAX);
        let counter = self.counter(what);
        let more = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        counter.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|_| self.over(what))
    }

    fn give_back(&self, what: What, amount: u64) {
        self.counter(what).fetch_sub(amount, Relaxed);
    }
}

/// All budgets of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    run: Arc<Used>,
    /// Connections from inside, whatever they ask for.
    inner: Arc<Used>,
    per_host: Budget,
    hosts: Mutex<HashMap<Host, Arc<Used>>>,
}

impl Ledger {
    pub(crate) fn new(run: Budget, per_host: Budget) -> Self {
        let run = Budget { connections: run.connections.or(Some(USUAL_CONNECTIONS)), ..run };
        let used = || Arc::new(Used { limits: run, ..Used::default() });
        Self { run: used(), inner: used(), per_host, hosts: Mutex::default() }
    }

    /// For a connection that comes from inside.
    pub(crate) fn enter(&self) -> Result<Presence, Over> {
        // The same limit, and told once.
        self.inner.take(What::Connections, 1).map_err(|_| self.run.over(What::Connections))?;
        Ok(Presence { inner: self.inner.clone() })
    }

    /// Connections from inside, now.
    pub(crate) fn present(&self) -> u64 {
        self.inner.connections.load(Relaxed)
    }

    /// For one request, or a tunnel, to a host.
    pub(crate) fn begin(&self, host: &Host) -> Result<Account, Over> {
        let host = self.host(host)?;
        let mut account = Account { run: self.run.clone(), host, holds: false };
        account.take(What::Connections, 1)?;
        account.holds = true;
        account.take(What::Requests, 1)?;
        Ok(account)
    }

    fn host(&self, host: &Host) -> Result<Option<Arc<Used>>, Over> {
        let Budget { bytes_out, bytes_in, connections, requests } = self.per_host;
        let lasting = bytes_out.is_some() || bytes_in.is_some() || requests.is_some();
        if !lasting && connections.is_none() {
            return Ok(None);
        }
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = hosts.get(host) {
            return Ok(Some(used.clone()));
        }
        if hosts.len() >= MOST_HOSTS && !lasting {
            hosts.retain(|_, used| used.connections.load(Relaxed) > 0);
        }
        if hosts.len() >= MOST_HOSTS {
            return Err(self.run.over(What::Hosts));
        }
        let name = Some(host.to_string());
        let used = Arc::new(Used { host: name, limits: self.per_host, ..Used::default() });
        hosts.insert(host.clone(), used.clone());
        Ok(Some(used))
    }
}

/// A connection from inside, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Presence {
    inner: Arc<Used>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.inner.give_back(What::Connections, 1);
    }
}

/// What one request or tunnel counts into, for as long as it is under way.
#[derive(Debug)]
pub(crate) struct Account {
    run: Arc<Used>,
    host: Option<Arc<Used>>,
    holds: bool,
}

impl Account {
    pub(crate) fn take(&self, what: What, amount: u64) -> Result<(), Over> {
        self.run.take(what, amount)?;
        let own = self.host.as_ref().map_or(Ok(()), |host| host.take(what, amount));
        own.inspect_err(|_| self.run.give_back(what, amount))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.holds {
            self.run.give_back(What::Connections, 1);
            if let Some(host) = &self.host {
                host.give_back(What::Connections, 1);
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
    fn a_limit_is_reached_and_never_passed() {
        let run = Budget { bytes_out: Some(10), ..Budget::default() };
        let ledger = Ledger::new(run, Budget::default());
        let account = ledger.begin(&host("a")).unwrap();
        account.take(What::BytesOut, 7).unwrap();
        let over = account.take(What::BytesOut, 4).unwrap_err();
        assert_eq!((over.what, over.limit, over.first), (What::BytesOut, 10, true));
        account.take(What::BytesOut, 3).unwrap();
        assert!(!account.take(What::BytesOut, 1).unwrap_err().first);
        account.take(What::BytesIn, u64::MAX).unwrap();
        account.take(What::BytesIn, 1).unwrap_err();
    }

    #[test]
    fn each_host_has_its_own_and_a_refusal_costs_the_run_nothing() {
        let run = Budget { requests: Some(3), ..Budget::default() };
        let per_host = Budget { requests: Some(1), ..Budget::default() };
        let ledger = Ledger::new(run, per_host);
        ledger.begin(&host("a")).unwrap();
        let over = ledger.begin(&host("a")).unwrap_err();
        assert_eq!(over.host.as_deref(), Some("a"));
        ledger.begin(&host("b")).unwrap();
        ledger.begin(&host("c")).unwrap();
        assert_eq!(ledger.begin(&host("d")).unwrap_err().host, None);
    }

    #[test]
    fn connections_are_counted_while_they_last() {
        let two = Budget { connections: Some(2), ..Budget::default() };
        let ledger = Ledger::new(two, Budget { connections: Some(1), ..Budget::default() });
        let first = ledger.begin(&host("a")).unwrap();
        assert_eq!(ledger.begin(&host("a")).unwrap_err().host.as_deref(), Some("a"));
        let _second = ledger.begin(&host("b")).unwrap();
        assert_eq!(ledger.begin(&host("c")).unwrap_err().host, None);
        drop(first);
        ledger.begin(&host("a")).unwrap();
        let inside: Vec<_> = (0..2).map(|_| ledger.enter().unwrap()).collect();
        ledger.enter().unwrap_err();
        drop(inside);
        ledger.enter().unwrap();
    }

    #[test]
    fn the_list_of_hosts_is_bounded_and_forgets_no_budget() {
        let lasting = Budget { bytes_out: Some(1), ..Budget::default() };
        let ledger = Ledger::new(Budget::default(), lasting);
        for number in 0..MOST_HOSTS {
            ledger.begin(&host(&format!("h{number}.example"))).unwrap();
        }
        assert_eq!(ledger.begin(&host("one.more")).unwrap_err().what, What::Hosts);
        ledger.begin(&host("h0.example")).unwrap();

        let passing = Budget { connections: Some(1), ..Budget::default() };
        let ledger = Ledger::new(Budget::default(), passing);
        for number in 0..2 * MOST_HOSTS {
            ledger.begin(&host(&format!("h{number}.example"))).unwrap();
        }
    }
}
