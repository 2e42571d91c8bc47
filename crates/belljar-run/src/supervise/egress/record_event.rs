//! Writes the events of the proxy to the record.

use belljar_spec::EventKind;
use belljar_spec::egress::EgressEvent;
use serde_json::{Value, json};

use belljar_record::{Importance, RecordError, Recorder, Secrets};

pub(super) fn record_event(event: EgressEvent, recorder: &mut Recorder) -> Result<(), RecordError> {
    let (kind, data) = match event {
        EgressEvent::Opened(opened) => (EventKind::EgressOpened, json!(opened)),
        EgressEvent::Allowed(allowed) => (EventKind::EgressAllowed, json!(allowed)),
        EgressEvent::Denied(denied) => (EventKind::EgressDenied, json!(denied)),
        EgressEvent::BudgetHit(hit) => {
            let mut data = json!(hit);
            data["limit_of"] = "egress".into();
            (EventKind::LimitHit, data)
        }
        EgressEvent::SecretMasked { env, count } => {
            (EventKind::SecretMasked, json!({ "env": env, "count": count }))
        }
    };
    let data = masked(data, recorder.secrets());
    // A run that tries again and again does not fill the disk: beyond its budget, events are dropped and counted.
    recorder.run_event(kind, &data, Importance::Ordinary).map(drop)
}

/// A process inside may put a secret into a name or a path.
fn masked(value: Value, secrets: &Secrets) -> Value {
    if secrets.is_empty() {
        return value;
    }
    match value {
        Value::String(text) => Value::String(secrets.mask_words_of(&text)),
        Value::Array(all) => all.into_iter().map(|one| masked(one, secrets)).collect(),
        Value::Object(all) => {
            all.into_iter().map(|(name, one)| (name, masked(one, secrets))).collect()
        }
        other => other,
    }
}
