//! What a record tells about the network: what was reached, what was not and why, which ports are open.

mod words;

use std::collections::BTreeMap;

use belljar_spec::egress::{
    DenyReason, EgressAllowed, EgressBudgetHit, EgressDenied, Published, Via,
};
use belljar_spec::host_rule::USUAL_PORTS;
use belljar_spec::{Event, EventKind, Host, RunId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use belljar_record::home::Home;
use belljar_record::{EventReader, ReadError};

/// A run that asks for more different things than this is told about these.
const MOST: usize = 10_000;

/// Everything that got out, or did not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    pub ports: Vec<Published>,
    pub reached: Vec<Reached>,
    pub denied: Vec<Denied>,
    pub budgets: Vec<EgressBudgetHit>,
    /// The proxy died before the run did.
    pub lost: bool,
    /// The set-up was over, and what only it could reach was shut.
    pub narrowed: bool,
}

/// A host and port that was allowed, all connections and requests together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reached {
    pub host: String,
    pub port: u16,
    pub rule: String,
    pub count: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// How many of them did not work, and what was wrong last.
    pub failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Something that was asked for and not let through, as often as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denied {
    pub host: String,
    pub port: Option<u16>,
    pub via: Via,
    pub reason: DenyReason,
    pub detail: Option<String>,
    pub method: Option<String>,
    pub path: Option<String>,
    pub count: u64,
    /// Who asked.
    pub stage: Stage,
}

/// Whose list did not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Setup,
    Run,
}

/// Reads it from the run's record, which may still be growing.
pub fn account(home: &Home, run: &RunId) -> Result<Account, ReadError> {
    let mut events = EventReader::open(&home.run_dir(run))?;
    let mut gathered = Gathered::default();
    while let Some(event) = events.next()? {
        gathered.take(event);
    }
    Ok(gathered.account())
}

/// What a denial is told apart by.
type DenialKey = (String, Option<u16>, String, Option<String>, Option<String>);

#[derive(Default)]
struct Gathered {
    account: Account,
    reached: BTreeMap<(String, u16, String), Reached>,
    denied: BTreeMap<DenialKey, Denied>,
}

impl Gathered {
    fn take(&mut self, event: Event) {
        match event.kind {
            EventKind::PortPublished => self.account.ports.extend(read::<Published>(event)),
            EventKind::EgressAllowed => {
                if let Some(allowed) = read(event) {
                    self.allowed(allowed);
                }
            }
            EventKind::EgressDenied => {
                if let Some(denied) = read(event) {
                    self.denied(denied);
                }
            }
            EventKind::EgressLost => self.account.lost = true,
            EventKind::EgressNarrowed => {
                self.account.narrowed = true;
                self.close_stage(Stage::Setup);
            }
            // Of the proxy's own limits; the others name no budget.
            EventKind::LimitHit => self.account.budgets.extend(read::<EgressBudgetHit>(event)),
            _ => {}
        }
    }

    fn allowed(&mut self, one: EgressAllowed) {
        let key = (one.host.clone(), one.port, one.rule.clone());
        if self.reached.len() >= MOST && !self.reached.contains_key(&key) {
            return;
        }
        let reached = self.reached.entry(key).or_insert_with(|| Reached {
            host: one.host,
            port: one.port,
            rule: one.rule,
            count: 0,
            bytes_out: 0,
            bytes_in: 0,
            failed: 0,
            error: None,
        });
        reached.count += one.count;
        reached.bytes_out += one.bytes_out;
        reached.bytes_in += one.bytes_in;
        if one.error.is_some() {
            reached.failed += one.count;
            reached.error = one.error;
        }
    }

    fn denied(&mut self, one: EgressDenied) {
        let reason = format!("{:?}", one.reason);
        let key = (one.host.clone(), one.port, reason, one.method.clone(), one.path.clone());
        if self.denied.len() >= MOST && !self.denied.contains_key(&key) {
            return;
        }
        let denied = self.denied.entry(key).or_insert_with(|| Denied {
            host: one.host,
            port: one.port,
            via: one.via,
            reason: one.reason,
            detail: one.detail,
            method: one.method,
            path: one.path,
            count: 0,
            stage: Stage::Run,
        });
        denied.count += one.count;
    }

    /// All that was denied until now was denied to these.
    fn close_stage(&mut self, stage: Stage) {
        let denied = std::mem::take(&mut self.denied).into_values();
        self.account.denied.extend(denied.map(|denied| Denied { stage, ..denied }));
    }

    fn account(mut self) -> Account {
        self.close_stage(Stage::Run);
        let mut account = self.account;
        account.reached = self.reached.into_values().collect();
        account.denied.sort_by_key(|denied| std::cmp::Reverse(denied.count));
        account
    }
}

fn read<T: DeserializeOwned>(event: Event) -> Option<T> {
    serde_json::from_value(event.data).ok()
}

impl Account {
    /// For a run that begins with a set-up: as long as that is not over, all that was denied was denied to it.
    pub fn begun_by_setup(mut self) -> Self {
        if !self.narrowed {
            self.denied.iter_mut().for_each(|denied| denied.stage = Stage::Setup);
        }
        self
    }

    /// The smallest list that would have served: what worked, and nothing more.
    pub fn smallest_list(&self) -> Vec<String> {
        let mut ports: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
        let mut rules: Vec<String> = Vec::new();
        let worked = self.reached.iter().filter(|reached| reached.count > reached.failed);
        // Of a flood the rest is counted together, under no name.
        for reached in worked.filter(|reached| Host::parse(reached.host.as_bytes()).is_ok()) {
            if reached.rule == "learn" {
                ports.entry(&reached.host).or_default().push(reached.port);
            } else if !reached.rule.starts_with("route ")
                && !reached.rule.starts_with("allow_private ")
                && !reached.rule.starts_with("setup ")
            {
                rules.push(reached.rule.clone());
            }
        }
        for (host, mut used) in ports {
            used.sort_unstable();
            used.dedup();
            if used == USUAL_PORTS {
                rules.push(host.to_owned());
            } else {
                rules.extend(used.iter().map(|port| format!("{host}:{port}")));
            }
        }
        rules.sort();
        rules.dedup();
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(host: &str, port: u16, rule: &str, failed: u64) -> Reached {
        let (host, rule) = (host.to_owned(), rule.to_owned());
        Reached { host, port, rule, count: 1, bytes_out: 0, bytes_in: 0, failed, error: None }
    }

    fn event(kind: EventKind, data: serde_json::Value) -> Event {
        let (time, prev, hash) = Default::default();
        Event { seq: 0, time, mono_ns: 0, kind, data, prev, hash }
    }

    #[test]
    fn the_first_of_equal_denials_and_the_count_of_the_others_are_one() {
        let denied = |count: u64| {
            let data = serde_json::json!({
                "host": "a.example", "port": 443, "via": "connect", "reason": "not_listed",
                "count": count,
            });
            event(EventKind::EgressDenied, data)
        };
        let mut gathered = Gathered::default();
        [denied(1), denied(6), denied(2)].into_iter().for_each(|one| gathered.take(one));
        let account = gathered.account();
        assert_eq!(account.denied.len(), 1, "{account:?}");
        assert_eq!((account.denied[0].count, account.denied[0].stage), (9, Stage::Run));
    }

    #[test]
    fn a_connection_that_was_not_used_is_neither_denied_nor_learned() {
        let unused = serde_json::json!({
            "id": 1, "host": "a.example", "port": 443, "via": "intercepted", "rule": "learn",
            "bytes_out": 0, "bytes_in": 0, "duration_ms": 1, "count": 1,
            "error": "closed by the client before it sent anything",
        });
        let mut gathered = Gathered::default();
        gathered.take(event(EventKind::EgressAllowed, unused));
        let account = gathered.account();
        assert!(account.denied.is_empty() && account.smallest_list().is_empty(), "{account:?}");
        assert_eq!(account.reached[0].failed, 1);
    }

    #[test]
    fn the_smallest_list_has_what_worked_and_nothing_more() {
        let account = Account {
            reached: vec![
                reached("a.example", 443, "learn", 0),
                reached("b.example", 80, "learn", 0),
                reached("b.example", 443, "learn", 0),
                reached("c.example", 22, "learn", 0),
                reached("gone.example", 443, "learn", 1),
                reached("x.d.example", 443, "*.d.example", 0),
                reached("api.example", 443, "route 8080", 0),
            ],
            ..Account::default()
        };
        let list = ["*.d.example", "a.example:443", "b.example", "c.example:22"];
        assert_eq!(account.smallest_list(), list);
    }
}
