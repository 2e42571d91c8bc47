//! Reads from the record the time between one run of the agent and the next.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar::record::EventReader;
use belljar::spec::{Event, EventKind, IterationReport};

/// Of one iteration.
#[derive(Debug)]
pub(super) struct Cost {
    /// From the end of the agent until it runs again.
    pub(super) besides: Duration,
    pub(super) checkpoint: Duration,
    pub(super) report: IterationReport,
}

pub(super) fn events_in(directory: &Path) -> Result<Vec<Event>> {
    let mut reader = EventReader::open(directory).context("cannot read a record")?;
    let mut events = Vec::new();
    while let Some(event) = reader.next().context("cannot read a record")? {
        events.push(event);
    }
    Ok(events)
}

/// Of every iteration that another one came after.
pub(super) fn costs(events: &[Event]) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    let (mut agent, mut ended, mut report) = (None, None, None);
    for event in events {
        match event.kind {
            EventKind::IterationStart => agent = event.data["exec"].as_u64(),
            EventKind::ExecStart if event.data["exec"].as_u64() == agent && agent.is_some() => {
                if let (Some(ended), Some(report)) = (ended.take(), report.take()) {
                    costs.push(cost(ended, event.mono_ns, report)?);
                }
            }
            EventKind::ExecExit if event.data["exec"].as_u64() == agent && agent.is_some() => {
                ended = Some(event.mono_ns);
            }
            EventKind::Checkpoint => {
                let found = serde_json::from_value(event.data.clone());
                report = Some(found.context("a checkpoint that is none")?);
            }
            _ => {}
        }
    }
    Ok(costs)
}

fn cost(ended: u64, again: u64, report: IterationReport) -> Result<Cost> {
    ensure!(report.failure.is_none(), "iteration {} failed: {report:?}", report.iteration);
    let besides = Duration::from_nanos(again.saturating_sub(ended));
    Ok(Cost { besides, checkpoint: Duration::from_millis(report.checkpoint.took_ms), report })
}

#[cfg(test)]
mod tests {
    use belljar::spec::{AgentTotals, CheckpointReport, TokenUsage};
    use serde_json::{Value, json};

    use super::*;

    fn event(kind: EventKind, millis: u64, data: Value) -> Event {
        let (time, prev, hash) = Default::default();
        Event { seq: 0, time, mono_ns: millis * 1_000_000, kind, data, prev, hash }
    }

    fn checkpoint(iteration: u32, took_ms: u64) -> Value {
        let report = IterationReport {
            iteration,
            exec: iteration,
            failure: None,
            wall_ms: 0,
            turns: 0,
            usage: TokenUsage::default(),
            changed: 100,
            session: None,
            session_totals: Default::default(),
            message: None,
            done: None,
            unparsed: 0,
            dropped: 0,
            checkpoint: CheckpointReport { took_ms, ..Default::default() },
            totals: AgentTotals::default(),
        };
        serde_json::to_value(report).unwrap()
    }

    #[test]
    fn an_iteration_costs_what_lies_between_two_runs_of_the_agent() {
        use EventKind::{Checkpoint, ExecExit, ExecStart, IterationStart};
        let mut events = vec![
            event(ExecStart, 1, json!({"exec": 0})),
            event(IterationStart, 2, json!({"iteration": 1, "exec": 1})),
            event(ExecStart, 3, json!({"exec": 1})),
            event(ExecExit, 50, json!({"exec": 1})),
            event(ExecExit, 55, json!({"exec": 9})), // of another exec
            event(Checkpoint, 60, checkpoint(1, 7)),
            event(IterationStart, 61, json!({"iteration": 2, "exec": 2})),
            event(ExecStart, 63, json!({"exec": 2})),
            event(ExecExit, 70, json!({"exec": 2})),
        ];
        let found = costs(&events).unwrap();
        let times: Vec<_> = found.iter().map(|one| (one.besides, one.checkpoint)).collect();
        assert_eq!(times, [(Duration::from_millis(13), Duration::from_millis(7))]);
        assert_eq!(found[0].report.changed, 100);
        events[5].data["failure"] = json!({"kind": "idle"});
        assert!(costs(&events).unwrap_err().to_string().contains("iteration 1"));
    }
}
