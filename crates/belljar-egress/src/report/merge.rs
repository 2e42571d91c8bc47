//! News that say the same, put together with their count. Bounded, whatever the run does.

use std::collections::HashMap;

use belljar_spec::egress::{DenyReason, EgressNews, Via};

/// Different ones; all further ones are those of `(others)`.
const MOST: usize = 256;
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Opened { host: String, port: u16, via: Via, rule: String },
    Allowed { host: String, port: u16, via: Via, rule: String, failed: bool },
    Denied { host: String, port: Option<u16>, via: Via, reason: DenyReason },
    BudgetHit { what: String, host: Option<String> },
    SecretMasked { env: String },
}

#[derive(Debug, Default)]
pub(crate) struct Merged {
    news: HashMap<Key, EgressNews>,
}

impl Merged {
    pub(crate) fn add(&mut self, mut news: EgressNews) {
        let mut key = key(&news);
        if self.news.len() >= MOST && !self.news.contains_key(&key) {
            generalise(&mut news);
            key = self::key(&news);
        }
        match self.news.get_mut(&key) {
            Some(sum) => add_up(sum, news),
            None => drop(self.news.insert(key, news)),
        }
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = EgressNews> {
        std::mem::take(&mut self.news).into_values()
    }
}

fn key(news: &EgressNews) -> Key {
    match news {
        EgressNews::Opened(opened) => Key::Opened {
            host: opened.host.clone(),
            port: opened.port,
            via: opened.via,
            rule: opened.rule.clone(),
        },
        EgressNews::Allowed(allowed) => Key::Allowed {
            host: allowed.host.clone(),
            port: allowed.port,
            via: allowed.via,
            rule: allowed.rule.clone(),
            failed: allowed.error.is_some(),
        },
        EgressNews::Denied(denied) => Key::Denied {
            host: denied.host.clone(),
            port: denied.port,
            via: denied.via,
            reason: denied.reason,
        },
        EgressNews::BudgetHit(hit) => {
            Key::BudgetHit { what: hit.what.clone(), host: hit.host.clone() }
        }
        EgressNews::SecretMasked { env, .. } => Key::SecretMasked { env: env.clone() },
    }
}

/// Leaves what has few values.
fn generalise(news: &mut EgressNews) {
    match news {
        EgressNews::SecretMasked { .. } => {}
        EgressNews::Opened(opened) => {
            OTHERS.clone_into(&mut opened.host);
            OTHERS.clone_into(&mut opened.rule);
            opened.port = 0;
        }
        EgressNews::Allowed(allowed) => {
            OTHERS.clone_into(&mut allowed.host);
            OTHERS.clone_into(&mut allowed.rule);
            allowed.port = 0;
            allowed.address = None;
        }
        EgressNews::Denied(denied) => {
            OTHERS.clone_into(&mut denied.host);
            denied.port = None;
            denied.detail = None;
        }
        EgressNews::BudgetHit(hit) => hit.host = Some(OTHERS.to_owned()),
    }
}

/// Keeps of the particulars only what both have.
fn add_up(sum: &mut EgressNews, news: EgressNews) {
    match (sum, news) {
        (EgressNews::Opened(sum), EgressNews::Opened(one)) => {
            sum.id = 0;
            sum.count = sum.count.saturating_add(one.count);
        }
        (EgressNews::Allowed(sum), EgressNews::Allowed(one)) => {
            sum.id = 0;
            sum.count = sum.count.saturating_add(one.count);
            sum.bytes_out = sum.bytes_out.saturating_add(one.bytes_out);
            sum.bytes_in = sum.bytes_in.saturating_add(one.bytes_in);
            sum.duration_ms = sum.duration_ms.saturating_add(one.duration_ms);
            keep_common(&mut sum.address, &one.address);
            keep_common(&mut sum.method, &one.method);
            keep_common(&mut sum.path, &one.path);
            keep_common(&mut sum.status, &one.status);
        }
        (EgressNews::Denied(sum), EgressNews::Denied(one)) => {
            sum.count = sum.count.saturating_add(one.count);
            keep_common(&mut sum.detail, &one.detail);
            keep_common(&mut sum.method, &one.method);
            keep_common(&mut sum.path, &one.path);
        }
        (EgressNews::SecretMasked { count: sum, .. }, EgressNews::SecretMasked { count, .. }) => {
            *sum = sum.saturating_add(count);
        }
        _ => {}
    }
}

fn keep_common<T: PartialEq>(sum: &mut Option<T>, one: &Option<T>) {
    if sum != one {
        *sum = None;
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::{EgressAllowed, EgressBudgetHit, EgressDenied, EgressOpened};

    use super::*;

    fn allowed(host: &str, bytes: u64) -> EgressNews {
        EgressNews::Allowed(EgressAllowed {
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

    fn denied(host: &str, path: &str) -> EgressNews {
        EgressNews::Denied(EgressDenied {
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

    fn opened(host: &str) -> EgressNews {
        let (host, rule) = (host.to_owned(), host.to_owned());
        let (id, port, via, count) = (7, 1, Via::Socks, 1);
        EgressNews::Opened(EgressOpened { id, host, port, via, rule, count })
    }

    #[test]
    fn equal_ones_are_summed_and_keep_what_they_share() {
        let mut merged = Merged::default();
        merged.add(allowed("a", 10));
        merged.add(allowed("a", 5));
        merged.add(denied("a", "/x"));
        merged.add(denied("a", "/y"));
        merged.add(opened("a"));
        merged.add(opened("a"));
        let news: Vec<_> = merged.take().collect();
        assert_eq!(news.len(), 3);
        for one in news {
            match one {
                EgressNews::Allowed(sum) => {
                    let figures = (sum.id, sum.count, sum.bytes_out, sum.bytes_in);
                    assert_eq!(figures, (0, 2, 15, 30));
                }
                EgressNews::Denied(sum) => {
                    assert_eq!((sum.count, sum.path), (2, None));
                    assert_eq!(sum.method.as_deref(), Some("GET"));
                }
                EgressNews::Opened(sum) => assert_eq!((sum.id, sum.count), (0, 2)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn different_ones_are_bounded() {
        let mut merged = Merged::default();
        for number in 0..10_000 {
            merged.add(denied(&format!("h{number}"), "/"));
            merged.add(allowed(&format!("h{number}"), 1));
            merged.add(opened(&format!("h{number}")));
            let host = Some(format!("h{number}"));
            let what = "requests".to_owned();
            merged.add(EgressNews::BudgetHit(EgressBudgetHit { what, limit: 1, host }));
        }
        let news: Vec<_> = merged.take().collect();
        assert!(news.len() < MOST + 10, "{}", news.len());
        let others = |news: &&EgressNews| matches!(news, EgressNews::Denied(denied) if denied.host == OTHERS);
        assert!(news.iter().find(others).is_some());
    }
}
