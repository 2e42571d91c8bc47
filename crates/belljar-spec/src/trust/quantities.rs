//! Finds limits and budgets that a manifest raises.

use super::{Finder, Widening};
use crate::manifest::{Limit, LimitSettings, Loop, NetworkBudget};

impl Finder<'_> {
    pub(super) fn limits(&mut self) {
        let LimitSettings { memory, cpus, pids, time, idle, output, disk, stop_timeout } =
            &self.manifest.limits;
        let lower = &self.baseline.lower.limits;
        self.found.extend(raised("limits.memory", *memory, lower.memory));
        self.found.extend(raised("limits.cpus", *cpus, lower.cpus));
        self.found.extend(raised("limits.pids", *pids, lower.pids));
        self.found.extend(raised("limits.time", *time, lower.time));
        self.found.extend(raised("limits.idle", *idle, lower.idle));
        self.found.extend(raised("limits.disk", *disk, lower.disk));
        self.found.extend(raised("limits.output", at(*output), at(lower.output)));
        self.found.extend(raised("limits.stop_timeout", at(*stop_timeout), at(lower.stop_timeout)));
    }

    pub(super) fn network_budgets(&mut self) {
        let (network, lower) = (&self.manifest.network, &self.baseline.lower.network);
        let both = [
            ("network.budget", &network.budget, &lower.budget),
            ("network.budget_per_host", &network.budget_per_host, &lower.budget_per_host),
        ];
        for (section, wanted, lower) in both {
            let NetworkBudget { bytes_out, bytes_in, connections, requests } = wanted;
            let key = |name: &str| format!("{section}.{name}");
            self.found.extend(raised(&key("bytes_out"), *bytes_out, lower.bytes_out));
            self.found.extend(raised(&key("bytes_in"), *bytes_in, lower.bytes_in));
            self.found.extend(raised(&key("connections"), *connections, lower.connections));
            self.found.extend(raised(&key("requests"), *requests, lower.requests));
        }
    }

    /// What an agent may spend in one iteration, and in all of them.
    pub(super) fn agent_budgets(&mut self) {
        let (agent, lower) = (&self.manifest.agent, &self.baseline.lower.agent);
        self.found.extend(raised("agent.max_turns", at(agent.max_turns), at(lower.max_turns)));
        self.found.extend(raised("agent.max_tokens", at(agent.max_tokens), at(lower.max_tokens)));
        let cost = (at(agent.max_cost_usd), at(lower.max_cost_usd));
        self.found.extend(raised("agent.max_cost_usd", cost.0, cost.1));

        let lower = &self.baseline.lower.r#loop;
        let Loop { max_iterations, max_time, max_cost_usd, max_turns, max_tokens, .. } =
            &self.manifest.r#loop;
        let Loop { max_unchanged, max_failures, checkpoints, .. } = &self.manifest.r#loop;
        let counts = [
            ("loop.max_iterations", *max_iterations, lower.max_iterations),
            ("loop.max_turns", *max_turns, lower.max_turns),
            ("loop.max_unchanged", *max_unchanged, lower.max_unchanged),
            ("loop.max_failures", *max_failures, lower.max_failures),
            ("loop.checkpoints", *checkpoints, lower.checkpoints),
        ];
        for (key, wanted, lower) in counts {
            self.found.extend(raised(key, at(wanted), at(lower)));
        }
        self.found.extend(raised("loop.max_time", at(*max_time), at(lower.max_time)));
        self.found.extend(raised("loop.max_cost_usd", at(*max_cost_usd), at(lower.max_cost_usd)));
        self.found.extend(raised("loop.max_tokens", at(*max_tokens), at(lower.max_tokens)));
    }
}

fn at<T>(value: Option<T>) -> Option<Limit<T>> {
    value.map(Limit::At)
}

/// Where the lower layers set nothing there is no limit to exceed.
fn raised<T: Copy + PartialOrd + ToString>(
    key: &str,
    wanted: Option<Limit<T>>,
    lower: Option<Limit<T>>,
) -> Option<Widening> {
    let (shown, limit) = match (wanted?, lower?) {
        (_, Limit::None) => return None,
        (Limit::At(value), Limit::At(limit)) if value <= limit => return None,
        (Limit::At(value), Limit::At(limit)) => (value.to_string(), limit),
        (Limit::None, Limit::At(limit)) => ("none".to_owned(), limit),
    };
    let what = format!("{shown} is above {}, the limit without this manifest", limit.to_string());
    Some(Widening { key: key.to_owned(), what })
}
