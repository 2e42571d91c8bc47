//! Resolves which clauses must hold, and which may be missing.

use std::collections::BTreeSet;

use super::ResolveError;
use crate::backends::BackendChoice;
use crate::clause::{Clause, Required};
use crate::egress::Reach;
use crate::layers::Settings;
use crate::manifest::{Limit, Waive};
use crate::posture::Waiver;
use crate::runspec::{Mount, MountMode};

pub(super) fn required(
    settings: &Settings,
    workspace: Option<&Mount>,
    reach: Reach,
) -> BTreeSet<Clause> {
    // A run that requests everything gets it, and the posture reports that it is weaker.
    let asks_for_everything = reach == Reach::Learn || super::network::allows_everything(settings);
    let writable = workspace.is_some_and(|workspace| workspace.mode == MountMode::Rw);
    let by_itself = |clause: &Clause| match clause.required() {
        Required::Always => !(*clause == Clause::NetSealed && asks_for_everything),
        Required::UnlessWritableWorkspace => !writable,
        Required::IfSet => limit_was_set(settings, *clause),
        Required::WherePossible | Required::OnRequest => false,
    };
    let ceiling = settings.ceiling.iter().flat_map(|file| file.ceiling.require.iter().flatten());
    let asked = settings.values.policy.require.iter().flat_map(|clauses| &clauses.0);
    let required = Clause::ALL.iter().filter(|clause| by_itself(clause));
    required.chain(asked).chain(ceiling).copied().collect()
}

/// Whether a setting requests the limit: the built-in value alone stops no launch.
fn limit_was_set(settings: &Settings, clause: Clause) -> bool {
    let limits = &settings.values.limits;
    let (key, limited) = match clause {
        Clause::LimitMemory => ("limits.memory", is_limited(limits.memory)),
        Clause::LimitCpu => ("limits.cpus", is_limited(limits.cpus)),
        Clause::LimitPids => ("limits.pids", is_limited(limits.pids)),
        Clause::FsQuota => ("limits.disk", is_limited(limits.disk)),
        _ => return false,
    };
    limited && settings.is_set(key)
}

fn is_limited<T>(limit: Option<Limit<T>>) -> bool {
    matches!(limit, Some(Limit::At(_)))
}

/// The ceiling has been checked already.
pub(super) fn waivers(
    settings: &Settings,
    backend: BackendChoice,
) -> Result<Vec<Waiver>, ResolveError> {
    let mut waivers: Vec<Waiver> = Vec::new();
    let Some(wanted) = &settings.values.policy.waive else {
        return Ok(waivers);
    };
    for (name, reason) in &wanted.0 {
        if let Ok(clause) = name.parse() {
            waivers.push(Waiver { clause, reason: reason.clone() });
        }
    }
    if let Some(reason) = wanted.0.get(Waive::ALL) {
        if backend != BackendChoice::Host {
            return Err(ResolveError::WaiveAll);
        }
        for clause in Clause::ALL {
            if !waivers.iter().any(|waiver| waiver.clause == *clause) {
                waivers.push(Waiver { clause: *clause, reason: reason.clone() });
            }
        }
    }
    Ok(waivers)
}
