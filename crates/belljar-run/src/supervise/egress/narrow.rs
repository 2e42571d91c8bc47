//! Closes the network access that only the set-up of an agent has.

use std::time::Duration;

use belljar_spec::EventKind;
use belljar_spec::wire::Mux;
use serde_json::json;

use super::proxy::NotApplied;
use super::{ACCEPTED, NetworkBridge, Proxy, record_event};
use belljar_record::{RecordError, Recorder};

/// It only has to close what it has; on a machine under heavy load too.
const WITHIN: Duration = Duration::from_secs(5);

/// The network access after the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterSetup {
    OwnRules,
    /// Only the set-up had any.
    Nothing,
}

impl NetworkBridge {
    pub(crate) fn with_setup(self, after_setup: AfterSetup) -> Self {
        Self { after_setup: Some(after_setup), ..self }
    }

    /// Called when the set-up is over, or does not run, before anything else is started. Returns when the access is
    /// closed. A proxy that does not answer is ended, and then nothing gets out at all; the record says which it was.
    /// Without a set-up, and on a second call, nothing happens.
    pub(crate) fn narrow(
        &mut self,
        mut mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        let Some(after_setup) = self.after_setup.take() else { return Ok(()) };
        let Some(proxy) = &mut self.proxy else { return Ok(()) };
        let narrowed = proxy.narrow(WITHIN);
        self.live.list.setup = None;
        // Their other ends are closed, or will be; the processes inside see that now.
        if let Some(mux) = mux.as_deref_mut() {
            self.relays.break_off(ACCEPTED, mux);
        }
        match narrowed {
            Ok(closed) => {
                self.take_proxy_events(mux, recorder)?; // what happened before comes before
                recorder.event(EventKind::EgressNarrowed, &json!({ "closed": closed }))?;
                // The operator may have added hosts meanwhile.
                if after_setup == AfterSetup::Nothing && self.live.list.is_empty() {
                    self.finish(recorder)?;
                }
                Ok(())
            }
            Err(NotApplied(why)) => {
                for event in self.proxy.iter_mut().flat_map(Proxy::take_early) {
                    record_event(event, recorder)?;
                }
                self.lose(&why, mux, recorder)
            }
        }
    }
}
