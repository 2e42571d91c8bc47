//! Reads a backend's posture from a plan that is not executed.

use std::collections::BTreeMap;

use belljar_spec::Clause;
use serde_json::Value;

use super::{LIMIT, Run, TestBed, TestBedError, process};

/// How a backend enforces a clause, and why not fully.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    All,
    Weaker(String),
    Nothing(String),
}

#[derive(Debug, Default)]
pub(super) struct Posture {
    /// For each clause `Ok`, or why it is not enforced.
    held: BTreeMap<&'static str, Result<(), String>>,
    /// What a run needs, and does not get.
    missing: Vec<String>,
}

impl Posture {
    fn read(report: &Value) -> Result<Self, TestBedError> {
        let mut held = BTreeMap::new();
        for clause in Clause::ALL {
            let promised = &report["plan"]["posture"][clause.name()];
            let is_held = match promised["status"].as_str() {
                Some("enforced") => Ok(()),
                Some(status) => {
                    let why = promised["why"].as_str().unwrap_or_default();
                    Err(format!("{clause} is {status} here: {why}"))
                }
                None => {
                    let error_text = format!("the plan does not contain {clause}");
                    return Err(TestBedError::NoPlan { error_text });
                }
            };
            held.insert(clause.name(), is_held);
        }
        let missing = report["missing"].as_array().into_iter().flatten();
        let missing = missing.filter_map(|unmet| unmet["clause"].as_str().map(str::to_owned));
        Ok(Self { held, missing: missing.collect() })
    }

    /// Or every start is refused for that reason, and shows nothing about any other. What a missing
    /// clause comes to is shown by the cases about it.
    pub(super) fn waivers(&self) -> impl Iterator<Item = String> {
        self.missing
            .iter()
            .map(|clause| format!("--waive={clause}=the attacks are tried without it"))
    }

    pub(super) fn of(&self, clause: Clause) -> Result<(), String> {
        let unsaid = || Err(format!("{clause} is not in the plan"));
        self.held.get(clause.name()).cloned().unwrap_or_else(unsaid)
    }
}

impl TestBed {
    pub(super) fn plan(&self, run: &Run) -> Result<Posture, TestBedError> {
        let planned = run.clone().flag("--dry-run").flag("--json");
        let seen = process::to_the_end(&mut self.command(&planned)?, "the plan", LIMIT)?;
        let report: Value = serde_json::from_slice(&seen.stdout)
            .map_err(|_| TestBedError::NoPlan { error_text: seen.stderr.trim().to_owned() })?;
        Posture::read(&report)
    }

    /// The same, with what is held of a clause that is weaker.
    pub(crate) fn held(&self, clause: Clause, flags: &[&str]) -> Result<Held, TestBedError> {
        Ok(match self.promise(clause, flags)? {
            Ok(()) => Held::All,
            Err(why) if why.contains(" is weaker here: ") => Held::Weaker(why),
            Err(why) => Held::Nothing(why),
        })
    }

    /// What the backend promises for a clause, with these flags. `Err` inside is why it is not enforced.
    pub(crate) fn promise(
        &self,
        clause: Clause,
        flags: &[&str],
    ) -> Result<Result<(), String>, TestBedError> {
        let run = flags.iter().fold(Run::mounted(&self.kit()), |run, flag| run.flag(flag));
        Ok(self.plan(&run)?.of(clause))
    }

    /// The run's calls are answered by a kernel of its own. It may refuse with another error than the
    /// host's would, and have things of its own to show: neither is the host's.
    pub(crate) fn kernel_is_separate(&self) -> bool {
        self.posture.of(Clause::KernelSeparate).is_ok()
    }

    /// What the backend promises for a clause to a run with a read-only tree of the host's.
    pub(crate) fn promised(&self, clause: Clause) -> Result<(), String> {
        self.posture.of(clause)
    }

    /// Runs start from an image, so there is no directory of the host's to be their root.
    pub(crate) fn has_image(&self) -> bool {
        self.arm.flags.iter().any(|flag| flag == "--image")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(status: &str) -> Value {
        let entry = json!({ "status": status, "why": "of a test" });
        let all: serde_json::Map<String, Value> =
            Clause::ALL.iter().map(|clause| (clause.name().to_owned(), entry.clone())).collect();
        json!({ "plan": { "posture": all }, "missing": [{ "clause": "fs.sockets" }] })
    }

    #[test]
    fn what_is_not_enforced_comes_with_its_reason() {
        let enforced = Posture::read(&report("enforced")).ok();
        assert!(enforced.is_some_and(|posture| posture.of(Clause::KernelSeparate).is_ok()));
        let weaker =
            Posture::read(&report("weaker")).ok().map(|posture| posture.of(Clause::FsMounts));
        assert_eq!(weaker, Some(Err("fs.mounts is weaker here: of a test".to_owned())));
    }

    #[test]
    fn a_clause_that_is_not_there_is_an_error_and_never_taken_for_held() {
        assert!(Posture::read(&json!({ "plan": { "posture": {} } })).is_err());
        assert!(Posture::default().of(Clause::KernelSeparate).is_err());
    }

    #[test]
    fn only_what_a_run_misses_is_waived() {
        let waived: Vec<String> = Posture::read(&report("weaker"))
            .map(|posture| posture.waivers().collect())
            .unwrap_or_default();
        assert_eq!(waived, ["--waive=fs.sockets=the attacks are tried without it"]);
    }
}
