//! Reads a run's network activity from its record: hosts reached, hosts denied and why, published ports.

mod denial_text;

use std::collections::BTreeMap;

use belljar_spec::egress::{
    DenyReason, EgressAllowed, EgressBudgetHit, EgressDenied, Published, Reach, Via,
};
use belljar_spec::host_rule::USUAL_PORTS;
use belljar_spec::network_list::NetworkList;
use belljar_spec::{Event, EventKind, Host, RunId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use belljar_record::home::Home;
use belljar_record::{EventReader, ReadError};

/// Different destinations that are reported; further ones are dropped.
const MAX_ENTRIES: usize = 10_000;

/// The network activity of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NetworkReport {
    pub ports: Vec<Published>,
    pub reached: Vec<ReachedHost>,
    pub denied: Vec<DeniedHost>,
    pub budgets: Vec<EgressBudgetHit>,
    /// The proxy died before the run did.
    pub lost: bool,
    /// The setup has ended, and hosts that only the setup could reach are blocked.
    pub narrowed: bool,
    /// What the operator changed while the run was alive, in order.
    pub changes: Vec<ListChange>,
}

/// The list of a run before and after a change by the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListChange {
    pub time: String,
    pub before: NetworkList,
    pub after: NetworkList,
}

#[derive(Deserialize)]
struct ListChanged {
    before: NetworkList,
    after: NetworkList,
}

impl ListChange {
    /// Entries that were added, and entries that were removed, as a person writes them.
    pub fn differences(&self) -> (Vec<String>, Vec<String>) {
        let (before, after) = (entries(&self.before), entries(&self.after));
        let only = |these: &[String], others: &[String]| {
            these.iter().filter(|entry| !others.contains(entry)).cloned().collect()
        };
        (only(&after, &before), only(&before, &after))
    }
}

fn entries(list: &NetworkList) -> Vec<String> {
    let learns = (list.reach == Reach::Learn).then(|| "every public name".to_owned());
    let routes = list.routes.iter().map(|listen| format!("route {listen}"));
    let setup = list.setup.iter().flatten().map(|rule| format!("{rule} for the set-up"));
    learns
        .into_iter()
        .chain(list.allow.iter().cloned())
        .chain(list.allow_private.iter().map(|host| format!("private {host}")))
        .chain(routes)
        .chain(setup)
        .collect()
}

/// A host and port that was allowed, with all its connections and requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReachedHost {
    pub host: String,
    pub port: u16,
    pub rule: String,
    pub count: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// How many of them failed, and the last error.
    pub failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A destination that was denied, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeniedHost {
    pub host: String,
    pub port: Option<u16>,
    pub via: Via,
    pub reason: DenyReason,
    pub detail: Option<String>,
    pub method: Option<String>,
    pub path: Option<String>,
    pub count: u64,
    /// The phase that made the request.
    pub stage: PolicyPhase,
}

/// The phase of the run, each of which has its own allow list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyPhase {
    Setup,
    Run,
}

/// Reads the run's record, which may still be growing.
pub fn network_report(home: &Home, run: &RunId) -> Result<NetworkReport, ReadError> {
    let mut events = EventReader::open(&home.run_dir(run))?;
    let mut builder = ReportBuilder::default();
    while let Some(event) = events.next()? {
        builder.take(event);
    }
    Ok(builder.report())
}

/// Denials with the same key are counted together.
type DenialKey = (String, Option<u16>, String, Option<String>, Option<String>);

#[derive(Default)]
struct ReportBuilder {
    report: NetworkReport,
    reached: BTreeMap<(String, u16, String), ReachedHost>,
    denied: BTreeMap<DenialKey, DeniedHost>,
}

impl ReportBuilder {
    fn take(&mut self, event: Event) {
        match event.kind {
            EventKind::PortPublished => self.report.ports.extend(read::<Published>(event)),
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
            EventKind::EgressLost => self.report.lost = true,
            EventKind::EgressNarrowed => {
                self.report.narrowed = true;
                self.close_phase(PolicyPhase::Setup);
            }
            EventKind::NetworkChanged => {
                let time = event.time.clone();
                if let Some(ListChanged { before, after }) = read(event) {
                    self.report.changes.push(ListChange { time, before, after });
                }
            }
            // Only budgets of the proxy parse; other limits have no budget.
            EventKind::LimitHit => self.report.budgets.extend(read::<EgressBudgetHit>(event)),
            _ => {}
        }
    }

    fn allowed(&mut self, one: EgressAllowed) {
        let key = (one.host.clone(), one.port, one.rule.clone());
        if self.reached.len() >= MAX_ENTRIES && !self.reached.contains_key(&key) {
            return;
        }
        let reached = self.reached.entry(key).or_insert_with(|| ReachedHost {
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
        if self.denied.len() >= MAX_ENTRIES && !self.denied.contains_key(&key) {
            return;
        }
        let denied = self.denied.entry(key).or_insert_with(|| DeniedHost {
            host: one.host,
            port: one.port,
            via: one.via,
            reason: one.reason,
            detail: one.detail,
            method: one.method,
            path: one.path,
            count: 0,
            stage: PolicyPhase::Run,
        });
        denied.count += one.count;
    }

    /// Assigns all denials so far to this phase.
    fn close_phase(&mut self, stage: PolicyPhase) {
        let denied = std::mem::take(&mut self.denied).into_values();
        self.report.denied.extend(denied.map(|denied| DeniedHost { stage, ..denied }));
    }

    fn report(mut self) -> NetworkReport {
        self.close_phase(PolicyPhase::Run);
        let mut report = self.report;
        report.reached = self.reached.into_values().collect();
        report.denied.sort_by_key(|denied| std::cmp::Reverse(denied.count));
        report
    }
}

fn read<T: DeserializeOwned>(event: Event) -> Option<T> {
    serde_json::from_value(event.data).ok()
}

impl NetworkReport {
    /// For a run with a setup: until the setup has ended, all denials belong to it.
    pub fn with_setup_phase(mut self) -> Self {
        if !self.narrowed {
            self.denied.iter_mut().for_each(|denied| denied.stage = PolicyPhase::Setup);
        }
        self
    }

    /// The shortest `network.allow` that covers what worked.
    pub fn minimal_allow_list(&self) -> Vec<String> {
        let mut ports: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
        let mut rules: Vec<String> = Vec::new();
        let worked = self.reached.iter().filter(|reached| reached.count > reached.failed);
        // Past a limit, requests are counted together without a host name.
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

    fn reached(host: &str, port: u16, rule: &str, failed: u64) -> ReachedHost {
        let (host, rule) = (host.to_owned(), rule.to_owned());
        ReachedHost { host, port, rule, count: 1, bytes_out: 0, bytes_in: 0, failed, error: None }
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
        let mut builder = ReportBuilder::default();
        [denied(1), denied(6), denied(2)].into_iter().for_each(|one| builder.take(one));
        let report = builder.report();
        assert_eq!(report.denied.len(), 1, "{report:?}");
        assert_eq!((report.denied[0].count, report.denied[0].stage), (9, PolicyPhase::Run));
    }

    #[test]
    fn a_connection_that_was_not_used_is_neither_denied_nor_learned() {
        let unused = serde_json::json!({
            "id": 1, "host": "a.example", "port": 443, "via": "intercepted", "rule": "learn",
            "bytes_out": 0, "bytes_in": 0, "duration_ms": 1, "count": 1,
            "error": "closed by the client before it sent anything",
        });
        let mut builder = ReportBuilder::default();
        builder.take(event(EventKind::EgressAllowed, unused));
        let report = builder.report();
        assert!(report.denied.is_empty() && report.minimal_allow_list().is_empty(), "{report:?}");
        assert_eq!(report.reached[0].failed, 1);
    }

    #[test]
    fn the_smallest_list_has_what_worked_and_nothing_more() {
        let report = NetworkReport {
            reached: vec![
                reached("a.example", 443, "learn", 0),
                reached("b.example", 80, "learn", 0),
                reached("b.example", 443, "learn", 0),
                reached("c.example", 22, "learn", 0),
                reached("gone.example", 443, "learn", 1),
                reached("x.d.example", 443, "*.d.example", 0),
                reached("api.example", 443, "route 8080", 0),
            ],
            ..NetworkReport::default()
        };
        let list = ["*.d.example", "a.example:443", "b.example", "c.example:22"];
        assert_eq!(report.minimal_allow_list(), list);
    }
}
