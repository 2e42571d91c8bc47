//! The end of the set-up: what only it could reach is out of reach, and what it opened is closed.

use std::time::Duration;

use belljar_spec::EventKind;
use belljar_spec::wire::Mux;
use serde_json::json;

use super::proxy::NotNarrowed;
use super::{ACCEPTED, NetworkBridge, Proxy, news};
use belljar_record::{RecordError, Recorder};

/// It only has to close what it has; on a machine under heavy load too.
const WITHIN: Duration = Duration::from_secs(5);

/// What gets out when the set-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterSetup {
    OwnRules,
    /// The set-up's was the only way out.
    Nothing,
}

impl NetworkBridge {
    pub(crate) fn with_setup(self, after_setup: AfterSetup) -> Self {
        Self { after_setup: Some(after_setup), ..self }
    }

    /// To be called when the set-up is over, or is not to run after all, before anything else is started. Waits until
    /// it is so. A proxy that does not answer is ended, and then nothing gets out at all: the record says which of both
    /// it was. Where there is no set-up, and when it was called before, nothing happens.
    pub(crate) fn narrow(
        &mut self,
        mut mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        let Some(after_setup) = self.after_setup.take() else { return Ok(()) };
        let Some(proxy) = &mut self.proxy else { return Ok(()) };
        let narrowed = proxy.narrow(WITHIN);
        // Their other ends are closed, or will be; whoever holds them inside hears it now.
        if let Some(mux) = mux.as_deref_mut() {
            self.relays.break_off(ACCEPTED, mux);
        }
        match narrowed {
            Ok(closed) => {
                self.hear(mux, recorder)?; // what happened before comes before
                recorder.event(EventKind::EgressNarrowed, &json!({ "closed": closed }))?;
                if after_setup == AfterSetup::Nothing {
                    self.finish(recorder)?;
                }
                Ok(())
            }
            Err(NotNarrowed(why)) => {
                for one in self.proxy.iter_mut().flat_map(Proxy::take_early) {
                    news::record(one, recorder)?;
                }
                self.lose(&why, mux, recorder)
            }
        }
    }
}
