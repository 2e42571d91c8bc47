//! Commands that somebody asks for are held against the run's rules before anything of them is made.

use belljar_spec::wire::Work;
use belljar_spec::wire::control::{ControlError, TaskRequest};
use belljar_spec::{EventKind, OsText};
use serde_json::json;

use super::event_loop::Run;
use crate::exec_rules::{BrokenRule, RuleDecision};
use belljar_record::{RecordError, looks_secret};

impl Run<'_> {
    /// `Some`: it is not to be started.
    pub(super) fn against_rules(
        &mut self,
        request: &TaskRequest,
    ) -> Result<Option<ControlError>, RecordError> {
        let Work::Program { argv } = &request.work else { return Ok(None) };
        let (kind, against) = match self.orders.guard.check(argv) {
            RuleDecision::Allow => return Ok(None),
            RuleDecision::Warn(against) => (EventKind::CommandWarned, against),
            RuleDecision::Refuse(against) => (EventKind::CommandDenied, against),
        };
        let secret = request.env.iter().filter(|(name, _)| looks_secret(name));
        self.recorder
            .add_secrets(secret.filter_map(|(_, value)| Some(value.as_ref()?.as_bytes().to_vec())));
        self.record_against(kind, argv, &against)?;
        if kind == EventKind::CommandWarned {
            return Ok(None);
        }
        let BrokenRule { rule, why, piece } = against;
        Ok(Some(ControlError::Denied { rule, why, piece }))
    }

    fn record_against(
        &mut self,
        kind: EventKind,
        argv: &[OsText],
        against: &BrokenRule,
    ) -> Result<(), RecordError> {
        let BrokenRule { rule, why, piece } = against;
        let piece = self.recorder.secrets().mask_words_of(piece);
        let argv = self.recorder.masked(argv);
        let what = json!({ "argv": argv, "rule": rule, "why": why, "piece": piece });
        self.recorder.event(kind, &what)
    }
}
