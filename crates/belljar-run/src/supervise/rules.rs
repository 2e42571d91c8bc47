//! Checks commands that clients ask for against the run's rules, before anything of them is started.

use belljar_record::{RecordError, Recorder, looks_secret};
use belljar_spec::wire::Work;
use belljar_spec::wire::control::{ControlError, TaskRequest};
use belljar_spec::{EventKind, OsText};
use serde_json::json;

use crate::exec_rules::{BrokenRule, ExecRules, RuleDecision};

/// `Some`: the command is not to be started.
pub(super) fn check_rules(
    rules: &ExecRules,
    request: &TaskRequest,
    recorder: &mut Recorder,
) -> Result<Option<ControlError>, RecordError> {
    let Work::Program { argv } = &request.work else { return Ok(None) };
    let (kind, broken) = match rules.check(argv) {
        RuleDecision::Allow => return Ok(None),
        RuleDecision::Warn(broken) => (EventKind::CommandWarned, broken),
        RuleDecision::Refuse(broken) => (EventKind::CommandDenied, broken),
    };
    mask_secrets(&request.env, recorder);
    record_broken(kind, argv, &broken, recorder)?;
    if kind == EventKind::CommandWarned {
        return Ok(None);
    }
    let BrokenRule { rule, why, piece } = broken;
    Ok(Some(ControlError::Denied { rule, why, piece }))
}

/// Values of variables whose names look like those of secrets do not get into the record.
pub(super) fn mask_secrets(env: &[(String, Option<OsText>)], recorder: &mut Recorder) {
    let secret = env.iter().filter(|(name, _)| looks_secret(name));
    recorder.add_secrets(secret.filter_map(|(_, value)| Some(value.as_ref()?.as_bytes().to_vec())));
}

fn record_broken(
    kind: EventKind,
    argv: &[OsText],
    broken: &BrokenRule,
    recorder: &mut Recorder,
) -> Result<(), RecordError> {
    let BrokenRule { rule, why, piece } = broken;
    let piece = recorder.secrets().mask_words_of(piece);
    let argv = recorder.masked(argv);
    recorder.event(kind, &json!({ "argv": argv, "rule": rule, "why": why, "piece": piece }))
}
