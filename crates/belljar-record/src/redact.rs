//! Keeps secret values out of what is recorded of a run.

use std::collections::BTreeMap;

use belljar_spec::{AgentSpec, AgentWork, OsText, Plan, RunSpec, Until};

use crate::{Secrets, looks_secret};

/// Stands for the value of a variable whose name looks secret.
pub const NOT_RECORDED: &str = "(not recorded)";

/// What of a run must not be recorded: values of variables whose names look secret.
pub fn secrets_of(spec: &RunSpec) -> Secrets {
    let values = spec.env.iter().filter(|(name, _)| looks_secret(name));
    Secrets::new(values.map(|(_, value)| value.as_bytes().to_vec()))
}

/// Such a variable is recorded by name only, and its value nowhere else either.
pub fn without_secret_values(spec: &RunSpec, secrets: &Secrets) -> RunSpec {
    let mut spec = spec.clone();
    hide_values(&mut spec.env, secrets);
    spec.command = spec.command.iter().map(|word| secrets.mask_word(word)).collect();
    spec.workdir = secrets.mask_word(&spec.workdir);
    for word in spec.image_defaults.entrypoint.iter_mut().flatten() {
        *word = secrets.mask_word(word);
    }
    for value in spec.labels.values_mut() {
        *value = secrets.mask_words_of(value);
    }
    if let Some(work) = spec.agent.as_deref_mut() {
        hide_in_work(work, secrets);
    }
    if let Some(agent) = spec.terminal_agent.as_deref_mut() {
        hide_in_agent(agent, secrets);
    }
    spec
}

fn hide_in_agent(agent: &mut AgentSpec, secrets: &Secrets) {
    for text in std::iter::once(&mut agent.prompt).chain(&mut agent.args) {
        if secrets.mask_words_of(text) != *text {
            *text = NOT_RECORDED.to_owned();
        }
    }
    for word in &mut agent.program {
        *word = whole_or_nothing(word, secrets);
    }
}

fn hide_in_work(work: &mut AgentWork, secrets: &Secrets) {
    hide_in_agent(&mut work.agent, secrets);
    let setup = work.setup.iter_mut().flat_map(|setup| &mut setup.command);
    let check = match &mut work.repeat.until {
        Some(Until::Command { argv, .. }) => argv.as_mut_slice(),
        _ => &mut [],
    };
    for word in setup.chain(check) {
        *word = whole_or_nothing(word, secrets);
    }
}

fn whole_or_nothing(word: &OsText, secrets: &Secrets) -> OsText {
    match secrets.mask_word(word) == *word {
        true => word.clone(),
        false => NOT_RECORDED.into(),
    }
}

/// The same for a plan, which holds the command too.
pub fn plan_without_secret_values(plan: &Plan, secrets: &Secrets) -> Plan {
    let mut plan = plan.clone();
    hide_values(&mut plan.command.env, secrets);
    plan.command.argv = plan.command.argv.iter().map(|word| secrets.mask_word(word)).collect();
    plan.command.workdir = secrets.mask_word(&plan.command.workdir);
    plan
}

/// A value may also stand in that of another variable: a password in an address.
fn hide_values(env: &mut BTreeMap<String, OsText>, secrets: &Secrets) {
    for (name, value) in env {
        *value = match looks_secret(name) {
            true => NOT_RECORDED.into(),
            // A part of it would be of no use, and who resumes the run must know that it is missing.
            false => whole_or_nothing(value, secrets),
        };
    }
}
