//! `[limits]` and `[policy]`.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::node::{Data, Node, Problem, join};
use super::scalars::Limit;
use super::table::section;
use super::value::{Added, Merge, Value};
use crate::clause::Clause;
use crate::cpus::Cpus;
use crate::human_duration::HumanDuration;
use crate::size::Size;

section! {
    /// What the run may use. `none` means no limit.
    pub struct LimitSettings {
        /// Memory with swap; half of the host's by default.
        memory: Option<Limit<Size>>,
        /// Processors, such as 1.5.
        cpus: Option<Limit<Cpus>>,
        /// Processes and threads.
        pids: Option<Limit<u32>>,
        /// Wall clock time.
        time: Option<Limit<HumanDuration>>,
        /// Time without any progress.
        idle: Option<Limit<HumanDuration>>,
        /// Bytes of each output stream that the record keeps.
        output: Option<Size>,
        /// Bytes on disk.
        disk: Option<Limit<Size>>,
        /// Time between the stop request and the kill.
        stop_timeout: Option<HumanDuration>,
    }
}

section! {
    /// Which promises must hold.
    pub struct Policy {
        /// Clauses required beyond those that always are. Every layer adds to these.
        require: Option<Added<Clause>>,
        /// Clauses that may be missing, each with the reason. Every layer adds to these.
        waive: Option<Waive>,
    }
}

/// Clause by name, or `all`, to the reason why it may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Waive(pub BTreeMap<String, String>);

impl Waive {
    /// Stands for every clause; only for the backend that holds none.
    pub const ALL: &'static str = "all";

    /// Checks that the clause exists, or is `all`, and that there is a reason.
    pub fn check(clause: &str, reason: &str) -> Result<(), String> {
        if clause != Self::ALL {
            clause.parse::<Clause>().map_err(|error| error.to_string())?;
        }
        if reason.trim().is_empty() {
            return Err(format!(
                "the waiver of {clause} has no reason; state why the clause may be missing"
            ));
        }
        Ok(())
    }
}

impl Value for Waive {
    fn read(node: &Node) -> Result<Self, Problem> {
        let Data::Table(entries) = &node.data else {
            return Err(Problem::wrong_type(
                node,
                "a table, such as { \"fs.quota\" = \"the reason\" }",
            ));
        };
        let mut waive = BTreeMap::new();
        for entry in entries {
            let under_key = |problem: Problem| problem.under(&entry.key);
            if matches!(entry.node.data, Data::Table(_)) {
                let what = "a clause's name needs quotes, such as \"fs.quota\" = \"the reason\"";
                return Err(under_key(Problem::at(&entry.node, what)));
            }
            let reason = String::read(&entry.node).map_err(under_key)?;
            let checked = Self::check(&entry.key, &reason);
            checked.map_err(|what| under_key(Problem::at(&entry.node, what)))?;
            waive.insert(entry.key.clone(), reason);
        }
        Ok(Self(waive))
    }

    fn write(&self) -> Data {
        self.0.write()
    }

    fn schema() -> Json {
        let mut names: Vec<&str> = Clause::ALL.iter().map(|clause| clause.name()).collect();
        names.push(Self::ALL);
        json!({
            "type": "object",
            "propertyNames": { "enum": names },
            "additionalProperties": { "type": "string", "minLength": 1 },
        })
    }

    fn merge(slot: &mut Option<Self>, higher: Self, key: &str, merge: &mut Merge<'_>) {
        let waive = slot.get_or_insert_default();
        for (clause, reason) in higher.0 {
            merge.won(join(key, &clause));
            waive.0.insert(clause, reason);
        }
    }
}
