//! Reads from a run's record which system calls the filter refused, and explains them.

mod explanation;

use std::collections::BTreeMap;

use belljar_record::home::Home;
use belljar_record::{EventReader, ReadError};
use belljar_spec::denied_call::SyscallDenied;
use belljar_spec::{Event, EventKind, RunId};
use serde::Serialize;

/// Different calls that are reported; further ones are dropped.
const MAX_ENTRIES: usize = 10_000;

/// A refused call, how often it was made, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeniedCallSummary {
    pub name: String,
    pub errno: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, u64>,
    pub count: u64,
    /// What the call is for and why it is refused, in one line.
    pub explanation: String,
}

impl DeniedCallSummary {
    /// The call with its arguments, such as `socket(family=40, type=1, protocol=0)`.
    pub fn call(&self) -> String {
        explanation::call(&self.name, &self.args)
    }
}

/// The most frequent come first. Reads the run's record, which may still be growing.
pub fn denied_calls(home: &Home, run: &RunId) -> Result<Vec<DeniedCallSummary>, ReadError> {
    let mut events = EventReader::open(&home.run_dir(run))?;
    let mut sums = Sums::default();
    while let Some(event) = events.next()? {
        sums.take(event);
    }
    Ok(sums.report())
}

/// By name, error and arguments.
#[derive(Default)]
struct Sums(BTreeMap<(String, String, BTreeMap<String, u64>), u64>);

impl Sums {
    fn take(&mut self, event: Event) {
        if event.kind != EventKind::SyscallDenied {
            return;
        }
        let Ok(denied) = serde_json::from_value::<SyscallDenied>(event.data) else { return };
        let SyscallDenied { name, errno, args, count } = denied;
        let key = (name, errno, args);
        if self.0.len() < MAX_ENTRIES || self.0.contains_key(&key) {
            let sum = self.0.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn report(self) -> Vec<DeniedCallSummary> {
        let summary = |((name, errno, args), count): ((String, String, BTreeMap<_, _>), u64)| {
            let explanation = explanation::explanation(&name, &errno, &args);
            DeniedCallSummary { name, errno, args, count, explanation }
        };
        let mut all: Vec<DeniedCallSummary> = self.0.into_iter().map(summary).collect();
        all.sort_by_key(|call| std::cmp::Reverse(call.count));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_about_the_same_call_are_one() {
        let event = |data: serde_json::Value| {
            let (time, prev, hash) = Default::default();
            Event { seq: 0, time, mono_ns: 0, kind: EventKind::SyscallDenied, data, prev, hash }
        };
        let socket = serde_json::json!({
            "name": "socket", "errno": "EPERM", "count": 1,
            "args": { "family": 40, "type": 1, "protocol": 0 },
        });
        let mount =
            |count: u64| serde_json::json!({ "name": "mount", "errno": "EPERM", "count": count });
        let mut sums = Sums::default();
        for data in [socket, mount(1), mount(6), serde_json::json!({ "name": 3 })] {
            sums.take(event(data));
        }
        let report = sums.report();
        let found: Vec<(String, u64)> = report.iter().map(|one| (one.call(), one.count)).collect();
        let expected = [
            ("mount".to_owned(), 7),
            ("socket(family=AF_VSOCK, type=1, protocol=0)".to_owned(), 1),
        ];
        assert_eq!(found, expected);
        assert!(report[1].explanation.contains("AF_VSOCK"), "{report:?}");
    }
}
