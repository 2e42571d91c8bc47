//! Merges equal events into one with a count. The number of different events is bounded.

use std::collections::HashMap;

use belljar_spec::egress::{DenyReason, EgressEvent, Via};

/// Different events; all others are counted as `(others)`.
const MAX_KINDS: usize = 256;
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MergeKey {
    Opened { host: String, port: u16, via: Via, rule: String },
    Allowed { host: String, port: u16, via: Via, rule: String, failed: bool },
    Denied { host: String, port: Option<u16>, via: Via, reason: DenyReason },
    BudgetHit { what: String, host: Option<String> },
    SecretMasked { env: String },
}

#[derive(Debug, Default)]
pub(crate) struct MergedEvents {
    events: HashMap<MergeKey, EgressEvent>,
}

impl MergedEvents {
    pub(crate) fn add(&mut self, mut event: EgressEvent) {
        let mut key = key(&event);
        if self.events.len() >= MAX_KINDS && !self.events.contains_key(&key) {
            generalise(&mut event);
            key = self::key(&event);
        }
        match self.events.get_mut(&key) {
            Some(sum) => accumulate(sum, event),
            None => drop(self.events.insert(key, event)),
        }
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = EgressEvent> {
        std::mem::take(&mut self.events).into_values()
    }
}

fn key(event: &EgressEvent) -> MergeKey {
    match event {
        EgressEvent::Opened(opened) => MergeKey::Opened {
            host: opened.host.clone(),
            port: opened.port,
            via: opened.via,
            rule: opened.rule.clone(),
        },
        EgressEvent::Allowed(allowed) => MergeKey::Allowed {
            host: allowed.host.clone(),
            port: allowed.port,
            via: allowed.via,
            rule: allowed.rule.clone(),
            failed: allowed.error.is_some(),
        },
        EgressEvent::Denied(denied) => MergeKey::Denied {
            host: denied.host.clone(),
            port: denied.port,
            via: denied.via,
            reason: denied.reason,
        },
        EgressEvent::BudgetHit(hit) => {
            MergeKey::BudgetHit { what: hit.what.clone(), host: hit.host.clone() }
        }
        EgressEvent::SecretMasked { env, .. } => MergeKey::SecretMasked { env: env.clone() },
    }
}

/// Keeps only the fields that have few values.
fn generalise(event: &mut EgressEvent) {
    match event {
        EgressEvent::SecretMasked { .. } => {}
        EgressEvent::Opened(opened) => {
            OTHERS.clone_into(&mut opened.host);
            OTHERS.clone_into(&mut opened.rule);
            opened.port = 0;
        }
        EgressEvent::Allowed(allowed) => {
            OTHERS.clone_into(&mut allowed.host);
            OTHERS.clone_into(&mut allowed.rule);
            allowed.port = 0;
            allowed.address = None;
        }
        EgressEvent::Denied(denied) => {
            OTHERS.clone_into(&mut denied.host);
            denied.port = None;
            denied.detail = None;
        }
        EgressEvent::BudgetHit(hit) => hit.host = Some(OTHERS.to_owned()),
    }
}

/// Keeps only the details that both share.
fn accumulate(sum: &mut EgressEvent, event: EgressEvent) {
    match (sum, event) {
        (EgressEvent::Opened(sum), EgressEvent::Opened(one)) => {
            sum.id = 0;
            sum.count = sum.count.saturating_add(one.count);
        }
        (EgressEvent::Allowed(sum), EgressEvent::Allowed(one)) => {
            sum.id = 0;
            sum.count = sum.count.saturating_add(one.count);
            sum.bytes_out = sum.bytes_out.saturating_add(one.bytes_out);
            sum.bytes_in = sum.bytes_in.saturating_add(one.bytes_in);
            sum.duration_ms = sum.duration_ms.saturating_add(one.duration_ms);
            clear_if_different(&mut sum.address, &one.address);
            clear_if_different(&mut sum.method, &one.method);
            clear_if_different(&mut sum.path, &one.path);
            clear_if_different(&mut sum.status, &one.status);
        }
        (EgressEvent::Denied(sum), EgressEvent::Denied(one)) => {
            sum.count = sum.count.saturating_add(one.count);
            clear_if_different(&mut sum.detail, &one.detail);
            clear_if_different(&mut sum.method, &one.method);
            clear_if_different(&mut sum.path, &one.path);
        }
        (EgressEvent::SecretMasked { count: sum, .. }, EgressEvent::SecretMasked { count, .. }) => {
            *sum = sum.saturating_add(count);
        }
        _ => {}
    }
}

fn clear_if_different<T: PartialEq>(sum: &mut Option<T>, one: &Option<T>) {
    if sum != one {
        *sum = None;
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::{EgressAllowed, EgressBudgetHit, EgressDenied, EgressOpened};

    use super::*;

    fn allowed(host: &str, bytes: u64) -> EgressEvent {
        EgressEvent::Allowed(EgressAllowed {
            id: 7,
            host: host.to_owned(),
            port: 443,
            via: Via::Connect,
            rule: host.to_owned(),
            address: None,
            method: None,
            path: None,
            status: None,
            bytes_out: bytes,
            bytes_in: 2 * bytes,
            duration_ms: 1,
            error: None,
            count: 1,
        })
    }

    fn denied(host: &str, path: &str) -> EgressEvent {
        EgressEvent::Denied(EgressDenied {
            host: host.to_owned(),
            port: Some(80),
            via: Via::Http,
            reason: DenyReason::RequestNotListed,
            detail: None,
            method: Some("GET".into()),
            path: Some(path.to_owned()),
            count: 1,
        })
    }

    fn opened(host: &str) -> EgressEvent {
        let (host, rule) = (host.to_owned(), host.to_owned());
        let (id, port, via, count) = (7, 1, Via::Socks, 1);
        EgressEvent::Opened(EgressOpened { id, host, port, via, rule, count })
    }

    #[test]
    fn equal_events_are_summed_and_keep_what_they_share() {
        let mut merged = MergedEvents::default();
        merged.add(allowed("a", 10));
        merged.add(allowed("a", 5));
        merged.add(denied("a", "/x"));
        merged.add(denied("a", "/y"));
        merged.add(opened("a"));
        merged.add(opened("a"));
        let event: Vec<_> = merged.take().collect();
        assert_eq!(event.len(), 3);
        for one in event {
            match one {
                EgressEvent::Allowed(sum) => {
                    let figures = (sum.id, sum.count, sum.bytes_out, sum.bytes_in);
                    assert_eq!(figures, (0, 2, 15, 30));
                }
                EgressEvent::Denied(sum) => {
                    assert_eq!((sum.count, sum.path), (2, None));
                    assert_eq!(sum.method.as_deref(), Some("GET"));
                }
                EgressEvent::Opened(sum) => assert_eq!((sum.id, sum.count), (0, 2)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn different_events_are_bounded() {
        let mut merged = MergedEvents::default();
        for number in 0..10_000 {
            merged.add(denied(&format!("h{number}"), "/"));
            merged.add(allowed(&format!("h{number}"), 1));
            merged.add(opened(&format!("h{number}")));
            let host = Some(format!("h{number}"));
            let what = "requests".to_owned();
            merged.add(EgressEvent::BudgetHit(EgressBudgetHit { what, limit: 1, host }));
        }
        let event: Vec<_> = merged.take().collect();
        assert!(event.len() < MAX_KINDS + 10, "{}", event.len());
        let others = |event: &&EgressEvent| matches!(event, EgressEvent::Denied(denied) if denied.host == OTHERS);
        assert!(event.iter().find(others).is_some());
    }
}
